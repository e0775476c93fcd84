"""Disk and memory; knows no graph."""
