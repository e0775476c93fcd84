"""Plain PyG modules."""
