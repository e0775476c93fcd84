"""Verdicts: which cells keep what is asked of TOP, counted apart by kind of model, the others named with a reason."""

from typing import Any

from topoff.experiments.table3_verdicts import Judged, on_equal_terms, verdicts


def judged(model: str, error: float | None, *, lost: float | None = 0.0, rival: float | None = 0.5) -> Judged:
    """Return a cell of Cora at 10 %."""
    own: dict[str, Any] = {"relative_error": error, "mean_degradation": lost, "accuracy_degradation": 0.001}
    return Judged("Cora", model, 10, {"top": {**own, "certificate": 0.4}, "gas": {"relative_error": rival}})


def test_models_are_counted_by_their_own_bounds() -> None:
    below, linear, general, said, lost = verdicts([judged("gcn", 0.03), judged("gat", 0.09)], "top", name="TOP")
    assert below == "TOP: error below CLUSTER's and GAS's in 2 of 2 cells (asked for: all)"
    assert (
        "GCN, GCNII and SAGE below 3.46 %, the paper's average at 10 %, in 1 of 1 cells (asked for: nine of ten)"
        in linear
    )
    assert "GAT and PNA below 10 % in 1 of 1 cells" in general
    assert "lost score below 0.3 points in 2 of 2 cells" in lost
    assert "below 5 %, as the paper says of its own, in 1 of 2 cells" in said
    assert "; not" not in below + linear + general + lost


def test_cells_that_fail_are_named_with_what_is_behind_it() -> None:
    found = [judged("sage", 0.04, lost=0.01, rival=0.02), judged("pna", 0.11)]
    below, linear, general, _, lost = verdicts(found, "top", name="TOP")
    assert below.endswith(
        "in 1 of 2 cells (asked for: all); not: Cora, sage, 10 %: 4.00 % (misses 40 % of the messages from outside) "
        "beside GAS, an epoch on 2.00 %"
    )
    assert linear.endswith("not: Cora, sage, 10 %: 4.00 % (misses 40 % of the messages from outside)")
    assert general.endswith("not: Cora, pna, 10 %: 11.00 % (misses 40 % of the messages from outside)")
    assert lost.endswith("not: Cora, sage, 10 %: 1.00 % (0.10 % over the test nodes of all batches at once)")


def test_cells_of_a_graph_and_a_model_stand_together() -> None:
    found = [Judged("Cora", "gcn", share, judged("gcn", share / 100).row) for share in (10, 20)]
    linear = verdicts(found, "top", name="TOP")[1]
    assert linear.endswith("; not: Cora, gcn, 10, 20 %: 10.00, 20.00 % (misses 40, 40 % of the messages from outside)")


def test_a_model_that_diverged_keeps_no_bound_of_errors_and_loses_nothing() -> None:
    below, linear, _, lost = verdicts([judged("gcn", None, lost=None, rival=None)], "top", name="TOP")
    assert "in 0 of 1 cells" in below
    assert "in 0 of 1 cells" in linear
    assert "in 1 of 1 cells" in lost
    assert verdicts([], "top", name="TOP") == []


def test_histories_of_the_same_age_count_too_and_are_counted_apart() -> None:
    cells = [judged("gcn", 0.01), judged("gcn", 0.02), judged("gcn", 0.03)]
    same = [Judged("Cora", "gcn", 10, {**each.row, "gas-aged": {"relative_error": 0.015}}) for each in cells[:2]]
    found = [*same, cells[2]]
    assert "in 2 of 3 cells" in verdicts(found, "top", name="TOP")[0]
    assert on_equal_terms(found, "top", name="TOP") == (
        "TOP: error below that of GAS, same age, in 1 of the 2 of 3 cells in which that was measured"
    )
    assert on_equal_terms(same, "top", name="TOP").endswith("in 1 of 2 cells")
