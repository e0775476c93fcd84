"""Disk, memory and log; knows no graph."""
