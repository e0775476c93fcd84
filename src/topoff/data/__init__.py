"""Files to a checked `Data`."""
