"""TOP and every rival, under one protocol."""
