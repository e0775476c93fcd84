"""Which nodes go together: partitions, node sets, samplers; arrays only."""
