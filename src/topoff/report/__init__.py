"""Pages and plots, from run files only."""
