"""Operators and cuts of the whole graph; knows no model."""
