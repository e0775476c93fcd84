"""Run an unmodified PyG model on a part of a graph: trace, intercept, subgraph, blocks, exact."""
