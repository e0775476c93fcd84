"""Several runs or methods against each other: compare, measure."""
