"""Disk, memory, processes and log; knows no graph."""
