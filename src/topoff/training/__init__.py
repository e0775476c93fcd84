"""From settings to a finished run folder, and its use: resume, evaluate, predict."""
