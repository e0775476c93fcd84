"""The paper: embeddings, basis, estimate, compensated batches, `TOP`."""
