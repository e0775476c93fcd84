"""The split of a graph: masks from lists of node ids, from several columns or by chance, and what scores need of them.

>>> graph = Data(x=torch.eye(3), train_idx=[0, 2], test_idx=torch.tensor([1]))
>>> masked(graph, 3).train_mask.tolist()
[True, False, True]
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.data.layout import MASKS, SPLITS
from topoff.data.refusal import refuse

WORDS = {"train": ("train",), "val": ("valid", "val"), "test": ("test",)}  # for each split, OGB's word first


def masked(data: Data, n: int) -> Data:
    """Return the graph with masks instead of OGB's `split_idx`, or of `train_idx`, `valid_idx` and `test_idx`.

    Raises:
        ValueError: for node ids out of range, a split without its parts, or two splits.
    """
    listed = {f"{word}_idx": split for split, words in WORDS.items() for word in words}
    found = [name for name in ("split_idx", *listed) if data.get(name) is not None]
    if not found:
        return data
    if ("split_idx" in found and len(found) > 1) or any(name in data for name in MASKS):
        others = "masks" if any(name in data for name in MASKS) else f"'{found[1]}'"
        refuse("one split", f"'{found[0]}' and {others}", "delete one of them")
    kept = {name: value for name, value in data.to_dict().items() if name not in found}
    if found == ["split_idx"]:
        return Data.from_dict(kept | _masks_of(data.split_idx, n))
    return Data.from_dict(kept | {f"{listed[name]}_mask": _mask(name, data[name], n) for name in found})


def _masks_of(indices: Any, n: int) -> dict[str, Tensor]:
    """Turn {"train": ids, "valid": ids, "test": ids} into masks."""
    if not isinstance(indices, Mapping):
        remedy = "give {'train': ids, 'valid': ids, 'test': ids}"
        refuse("'split_idx' to be a dict of node ids", type(indices).__name__, remedy)
    masks = {}
    for split, words in WORDS.items():
        found = [word for word in words if word in indices]
        if not found:
            refuse(f"'split_idx' to have the key '{words[0]}'", f"{sorted(indices)}", "add it, empty if need be")
        masks[f"{split}_mask"] = _mask("split_idx", indices[found[0]], n)
    return masks


def _mask(name: str, listed: Any, n: int) -> Tensor:
    """Return (n,) bool, True at the listed node ids."""
    ids = torch.as_tensor(listed)
    if ids.numel() and (ids.is_floating_point() or ids.dtype == torch.bool):
        refuse(f"'{name}' to hold node ids", str(ids.dtype), "list integers, or call a mask train_mask, val_mask, ...")
    ids = ids.long().view(-1)
    if ids.numel() and (ids.min() < 0 or ids.max() >= n):
        wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
        refuse(f"'{name}' to hold node ids from 0 to {n - 1}", str(wrong), "renumber them")
    return torch.zeros(n, dtype=torch.bool, device=ids.device).index_fill_(0, ids, value=True)


def choose_split(data: Data, *, split: int, seed: int) -> Data:
    """Return the graph with one mask per split: one of several columns; without any, labelled nodes are shared out."""
    n = len(data.x) if isinstance(data.get("x"), Tensor) and data.x.dim() else 0
    data = masked(data, n)
    several = [name for name in MASKS if isinstance(data.get(name), Tensor) and data[name].dim() == 2]
    count = min((data[name].size(1) for name in several), default=1)
    if not count:
        refuse("masks to have a column for every split", "none at all", "add them, or leave the masks out")
    if not 0 <= split < count:
        refuse(f"'split' to be from 0 to {count - 1}", str(split), "this graph has no other split")
    for name in several:
        data[name] = data[name][:, split].contiguous()
    if data.get("y") is not None and not any(name in data for name in MASKS):
        data.update(_draw_masks(data.y, n, seed=seed))
    return data


def _draw_masks(y: Any, n: int, *, seed: int) -> dict[str, Tensor]:
    """Draw 60/20/20 % of the labelled nodes."""
    labeled = np.arange(n)
    if isinstance(y, Tensor) and y.numel() and y.dim() and len(y) == n:
        flat = y.reshape(n, -1)
        known = ~flat.isnan().any(1) if y.is_floating_point() else (flat >= 0).any(1)
        labeled = known.nonzero().view(-1).cpu().numpy()
    order = np.random.default_rng(seed).permutation(labeled)
    pieces = np.split(order, [-(-6 * len(order) // 10), -(-8 * len(order) // 10)])
    return {name: _mask(name, ids, n) for name, ids in zip(MASKS, pieces, strict=True)}


def given_masks(data: Data, *, purpose: str) -> dict[str, Tensor]:
    """Return the masks of a graph by split.

    Raises:
        ValueError: it has no labels or no masks.
    """
    masks = {split: data[f"{split}_mask"] for split in SPLITS if data.get(f"{split}_mask") is not None}
    if data.get("y") is None or not masks:
        remedy = "set data.y and the masks (topoff.load draws them where there are none); predict() needs neither"
        missing = "masks" if data.get("y") is not None else "labels, 'y'"
        refuse(f"labels and masks for {purpose}", f"a graph without {missing}", remedy)
    return masks
