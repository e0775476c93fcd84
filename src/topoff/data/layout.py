"""What the parts of a graph are called: splits, the arrays that `topoff.load` reads from .npz files, our own names."""

SPLITS = ("train", "val", "test")
MASKS = tuple(f"{split}_mask" for split in SPLITS)
CSR = ("x_data", "x_indices", "x_indptr", "x_shape")  # features as a sparse matrix
NAMES = ("node_ids", "class_names")
LAYOUT = ("edge_index", "x", *CSR, "y", "split", *MASKS, "edge_weight", "edge_attr", *NAMES)
CARRIED = (  # by batches, besides the graph's own attributes: see ARCHITECTURE.md
    *("n_id", "batch_size", "supplement", "compensation", "blocks", "halo", "vicinity", "last_draws", "loss_weight"),
)
STORE = "store.json"  # the header of a folder of memory-mapped arrays: see data/store
STORED = ("edge_index", "indptr", "x")  # arrays that every store has
OPTIONAL = ("y", "split", "edge_weight", "node_ids", "part")  # and those that it may have
STORE_FILES = (STORE, *(f"{name}.npy" for name in (*STORED, *OPTIONAL)))
