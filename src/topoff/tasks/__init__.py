"""Loss and score from labels."""
