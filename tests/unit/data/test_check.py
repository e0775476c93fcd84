"""A valid graph passes the check unchanged; every malformed one gives one sentence, through load() too."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

from graph_files import N, crooked, mask, same
from graphs import communities
from topoff.data import check as check_room
from topoff.data.check import check, check_graph, row_normalized, standardized
from topoff.data.layout import MASKS
from topoff.data.load import load


def test_corners_pass_unchanged() -> None:
    graph = crooked()
    checked = check(graph)
    assert type(checked) is Data
    assert checked is not graph
    assert same(checked, graph)
    assert checked.edge_index.is_contiguous()


def test_no_edges_and_further_attributes_pass() -> None:
    graph = crooked(edge_index=torch.empty(2, 0, dtype=torch.long), edge_weight=None, edge_attr=None, name="g")
    assert check(graph).name == "g"
    assert check(graph).edge_index.shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float16, torch.bfloat16])
def test_features_become_float32(dtype: torch.dtype) -> None:
    assert check(crooked(x=torch.eye(N).to(dtype))).x.equal(torch.eye(N))


def test_float64_stays_and_weights_follow() -> None:
    checked = check(crooked(x=torch.eye(N).double()))
    assert checked.x.dtype == checked.edge_weight.dtype == torch.float64


@pytest.mark.parametrize("form", [torch.Tensor.int, lambda e: e.t().contiguous().t(), EdgeIndex])
def test_edges_become_contiguous_int64(form: Callable[[torch.Tensor], torch.Tensor]) -> None:
    edges = crooked().edge_index
    checked = check(crooked(edge_index=form(edges))).edge_index
    assert type(checked) is torch.Tensor
    assert checked.equal(edges)
    assert checked.is_contiguous()


def test_labels_of_three_kinds() -> None:
    several = torch.tensor([[0, 1, 1]] * N)
    assert check(crooked(y=several)).y.equal(several.float())
    assert check(crooked(y=several.double())).y.dtype == torch.float64
    assert check(crooked(y=crooked().y.view(N, 1).int())).y.equal(crooked().y)
    target = torch.tensor([0.5, 1, 2, 3, 4, torch.nan])
    assert check(crooked(y=target)).y[:5].equal(target[:5])
    assert check(crooked(y=torch.zeros(N, dtype=torch.bool))).y.dtype == torch.int64


def test_input_is_not_changed() -> None:
    graph = crooked(x=torch.eye(N).long(), y=crooked().y.int(), train_mask=None, val_mask=None, test_mask=None)
    before = graph.clone()
    load(graph)
    assert same(graph, before)


BAD = {
    "no nodes": ({"x": torch.empty(0, 2)}, r"'x' to have shape \(nodes, features\) \(got \(0, 2\)\)"),
    "no features": ({"x": torch.empty(N, 0)}, "at least one node and one feature"),
    "flat x": ({"x": torch.ones(N)}, r"'x' to have shape \(nodes, features\)"),
    "missing x": ({"x": None}, r"'x' to be a dense torch.Tensor \(got nothing\); set data.x"),
    "sparse x": ({"x": torch.eye(N).to_sparse()}, r"'x' to be a dense torch.Tensor \(got torch.sparse_coo\)"),
    "numpy x": ({"x": np.eye(N)}, r"'x' to be a dense torch.Tensor \(got ndarray\)"),
    "complex x": ({"x": torch.eye(N) * 1j}, r"'x' to be real \(got torch.complex64\)"),
    "nan x": ({"x": torch.eye(N) / torch.eye(N)}, r"'x' to be finite \(got NaN or inf in 6 rows, first 0\)"),
    "inf x": ({"x": crooked().x.index_fill(0, torch.tensor(4), torch.inf)}, "in 1 rows, first 4"),
    "rows of x": ({"x": torch.ones(4, 2)}, "'edge_index' to hold node ids from 0 to 3 .*got 0 to 4.*renumber"),
    "num_nodes": ({"num_nodes": 9}, r"'x' to have 9 rows, as num_nodes says \(got 6\)"),
    "float edges": ({"edge_index": crooked().edge_index.float()}, r"'edge_index' to hold integers \(got torch.float32"),
    "bool edges": ({"edge_index": crooked().edge_index.bool()}, "'edge_index' to hold integers"),
    "rows of pairs": ({"edge_index": crooked().edge_index.t()}, r"shape \(2, edges\) \(got \(5, 2\)\).*transpose"),
    "edges flat": ({"edge_index": torch.arange(2)}, r"'edge_index' to have shape \(2, edges\)"),
    "edge too high": ({"edge_index": crooked().edge_index + 3}, "node ids from 0 to 5 .*got 3 to 7"),
    "edge negative": ({"edge_index": crooked().edge_index - 1}, "node ids from 0 to 5 .*got -1 to 3"),
    "missing edges": ({"edge_index": None}, "'edge_index' to be a dense torch.Tensor .*got nothing"),
    "missing y": ({"y": None}, "'y' to be a dense torch.Tensor .*got nothing"),
    "rows of y": ({"y": torch.zeros(4).long()}, r"'y' to have 6 rows \(got shape \(4,\)\)"),
    "deep y": ({"y": torch.zeros(N, 2, 2)}, "'y' to have 6 rows"),
    "label -2": ({"y": torch.tensor([0, 0, 0, 0, 0, -2])}, r"'y' to hold classes from 0 \(got -2, 0 negative"),
    "label -1 used": ({"y": torch.tensor([0, -1, 0, -1, 0, 0])}, "got -1, 2 negative ones in the masks.*with -1"),
    "multi-label 2": ({"y": torch.full((N, 2), 2)}, "multi-label 'y' to hold 0 and 1"),
    "multi-label nan": ({"y": torch.full((N, 2), torch.nan)}, "multi-label 'y' to hold 0 and 1"),
    "target nan": ({"y": torch.full((N,), torch.nan)}, "'y' to be finite in all masks"),
    "target too large": (
        {"y": torch.tensor([1.0, 2, 3, 4, torch.nan, 1e30]), "test_mask": mask()},
        r"'y' to hold numbers up to .*\(got 1e\+30 in row 5\)",
    ),
    "overlap": ({"val_mask": mask(1, 2)}, "'train_mask' and 'val_mask' not to overlap .*got 1 common nodes"),
    "overlap test": ({"test_mask": mask(0, 1)}, "'train_mask' and 'test_mask' not to overlap .*got 2 common"),
    "overlap val test": ({"val_mask": mask(3)}, "'val_mask' and 'test_mask' not to overlap"),
    "short mask": (
        {"train_mask": mask(0, n=4)},
        r"'train_mask' to be bool of shape \(6,\) \(got torch.bool of",
    ),
    "mask of ids": ({"val_mask": torch.tensor([2])}, r"'val_mask' to be bool of shape \(6,\) \(got torch.int64"),
    "mask of 0/1": ({"test_mask": mask(3).byte()}, r"'test_mask' to be bool .*got torch.uint8"),
    "one mask missing": ({"val_mask": None}, "'val_mask' to be given .*all False is allowed"),
    "nothing to train": ({"train_mask": mask()}, "'train_mask' to hold a node .*got no training nodes"),
    "short weight": ({"edge_weight": torch.ones(4)}, r"'edge_weight' to have 5 rows, as edge_index \(got shape \(4,\)"),
    "wide weight": ({"edge_weight": torch.ones(5, 1)}, "'edge_weight' to have 5 rows"),
    "nan weight": ({"edge_weight": torch.full((5,), torch.nan)}, "'edge_weight' to be finite"),
    "short attr": ({"edge_attr": torch.ones(4, 2)}, "'edge_attr' to have 5 rows"),
    "scalar attr": ({"edge_attr": torch.tensor(1.0)}, "'edge_attr' to have 5 rows"),
    "inf attr": ({"edge_attr": torch.full((5, 2), torch.inf)}, "'edge_attr' to be finite"),
    "adj_t": ({"adj_t": torch.eye(N).to_sparse()}, "the edges in 'edge_index' .*got 'adj_t'"),
    "link labels": ({"edge_label": torch.ones(5)}, "labels of nodes .*link tasks are not supported yet"),
    "link pairs": ({"edge_label_index": torch.ones(2, 5)}, "link tasks are not supported yet"),
}


@pytest.mark.parametrize(("changes", "sentence"), BAD.values(), ids=BAD.keys())
def test_malformed(changes: dict[str, Any], sentence: str) -> None:
    for function in (check, load):
        with pytest.raises(ValueError, match=sentence) as caught:
            function(crooked(**changes))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("function", [check, load])
def test_other_types_are_refused(function: Callable[[Any], Data]) -> None:
    with pytest.raises(TypeError, match=r"homogeneous PyG Data \(got HeteroData\); node and edge types .*to_homog"):
        function(HeteroData())
    with pytest.raises(TypeError, match=r"homogeneous PyG Data \(got int\); pass a name, a path or"):
        function(3)


def test_rows_are_divided_by_their_sums_and_rows_of_zeros_stay() -> None:
    data = Data(x=torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    assert row_normalized(data).x.tolist() == [[0.25, 0.75], [0.0, 0.0]]
    assert data.x.tolist() == [[1.0, 3.0], [0.0, 0.0]]


def test_features_get_mean_0_and_deviation_1() -> None:
    data = Data(x=torch.tensor([[1.0, 7.0], [2.0, 7.0], [6.0, 7.0]]))
    out = standardized(data).x
    assert torch.allclose(out.mean(dim=0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(out.std(dim=0), torch.tensor([1.0, 0.0]))  # a constant feature stays one
    assert data.x[0].tolist() == [1.0, 7.0]


def test_a_graph_is_checked_once_unless_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    data, looks = check(communities()), []
    look = check_room._check_x
    monkeypatch.setattr(check_room, "_check_x", lambda x, **how: looks.append(1) or look(x, **how))
    again = check(data)
    assert (again is data, check_graph(again).x is data.x, looks) == (False, True, [])
    again.x[0, 0] = float("nan")
    with pytest.raises(ValueError, match="finite"):
        check(again)
    again = check(communities())
    again.x = again.x[:-1]
    with pytest.raises(ValueError, match="Expected"):
        check(again)


def test_features_of_three_dimensions_pass() -> None:
    x = torch.rand(N, 3, 2)
    assert check(crooked(x=x)).x is x
    x[4, 1, 1] = torch.nan
    with pytest.raises(ValueError, match="NaN or inf in 1 rows, first 4"):
        check(crooked(x=x))


@pytest.mark.parametrize("missing", [("y",), MASKS, ("y", *MASKS), ("val_mask",), ("val_mask", "test_mask", "y")])
def test_labels_and_masks_may_be_missing(missing: tuple[str, ...]) -> None:
    checked = check(crooked(**dict.fromkeys(missing)), labels=False)
    assert set(crooked().keys()) - set(checked.keys()) == set(missing)
    with pytest.raises(ValueError, match="Expected"):
        check(checked)  # noted as checked, but not for labels


def test_labels_and_masks_that_are_given_are_checked() -> None:
    for changes, sentence in BAD.values():
        if not ({"y", "val_mask"} & {name for name, value in changes.items() if value is None}):
            with pytest.raises(ValueError, match=sentence):
                check(crooked(**changes), labels=False)
    with pytest.raises(ValueError, match="'train_mask' to be given"):
        check(crooked(train_mask=None), labels=False)


def test_a_graph_without_labels_is_loaded_where_none_are_asked_for() -> None:
    bare = crooked(**dict.fromkeys(("y", *MASKS)))
    assert not {"y", *MASKS} & set(load(bare, labels=False).keys())
    assert load(crooked(**dict.fromkeys(MASKS)), labels=False).train_mask.any()  # with labels a split is drawn
    with pytest.raises(ValueError, match=r"'y' to be a dense torch.Tensor \(got nothing\); .*labels=False"):
        load(bare)


@pytest.mark.parametrize("ids", [[0, 999], [0, 1000], [3, 10**6], [0, 2**62]])
def test_ids_of_classes_with_large_gaps_are_refused(ids: list[int]) -> None:
    y = torch.tensor([ids[0], ids[1], ids[0], ids[1], ids[0], -1])
    if ids[1] == 999:
        assert check(crooked(y=y)).y.equal(y)
        return
    with pytest.raises(
        ValueError, match=r"'y' to number the classes that occur \(got 2 classes .*np.unique\(y, return_inv"
    ):
        check(crooked(y=y))


def test_many_classes_that_occur_are_fine() -> None:
    n = 3000
    train = torch.arange(n) % 2 == 0
    none = torch.zeros(n, dtype=torch.bool)
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    masks = {"train_mask": train, "val_mask": ~train, "test_mask": none}
    assert int(check(Data(x=torch.ones(n, 1), edge_index=ring, y=torch.arange(n), **masks)).y.max()) == n - 1


@pytest.mark.parametrize(("key", "value"), [("x", 1e30), ("edge_weight", -1e20), ("y", 1e30)])
def test_numbers_whose_squares_are_infinite_are_refused(key: str, value: float) -> None:
    values = crooked()[key].double().clone()
    values[1] = value
    given = crooked(**{key: values.float() if key == "x" else values})
    with pytest.raises(
        ValueError, match=rf"'{key}' to hold numbers up to .*\(got {re.escape(f'{value:.3g}')} in row 1\)"
    ):
        check(given)
