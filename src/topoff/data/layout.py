"""What the parts of a graph are called: its splits, and the arrays that `topoff.load` reads from .npz files."""

SPLITS = ("train", "val", "test")
MASKS = tuple(f"{split}_mask" for split in SPLITS)
CSR = ("x_data", "x_indices", "x_indptr", "x_shape")  # features as a sparse matrix
NAMES = ("node_ids", "class_names")
LAYOUT = ("edge_index", "x", *CSR, "y", "split", *MASKS, "edge_weight", "edge_attr", *NAMES)
