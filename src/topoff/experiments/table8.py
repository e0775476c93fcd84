"""Table 8: errors under other samplers, Random, SAINT, ShaDow and METIS, with and without compensation.

>>> len(cells(Scope(quick=True, stand_in=True)))
4
"""

from __future__ import annotations

from topoff.experiments import table3
from topoff.experiments.paper_graphs import Source, is_there, load_of, source
from topoff.experiments.study import Cell, Results, Scope, Sheet, Study, failed, percent

SAMPLERS = {"random": "Random", "saint-walk": "SAINT", "shadow": "SHADOW", "metis": "METIS"}
PRINTED: dict[tuple[str, str], dict[str, tuple[str | None, ...]]] = {  # in per cent, by sampler, as printed
    ("ogbn-arxiv", "gcn"): {
        "cluster": ("30.02", "15.79", "12.49", "12.10"),
        "gas": ("45.29", None, None, "9.89"),
        "top": ("7.61", "5.94", "3.41", "1.58"),
    },
    ("Reddit", "sage"): {
        "cluster": ("25.91", "22.22", "21.32", "3.44"),
        "gas": ("13.91", None, None, "1.90"),
        "top": ("3.10", "1.45", "1.27", "0.61"),
    },
    ("Yelp", "gcnii"): {
        "cluster": ("4.87", "1.13", "0.91", "2.38"),
        "gas": ("7.86", None, None, "4.01"),
        "top": ("2.68", "0.74", "0.64", "0.86"),
    },
}
HALF = {"metis": "100"}  # of 200 clusters, as in Table 3
RATIO = {"shadow": 0.05}  # of the training nodes, whose subgraphs together are a batch; else of all nodes
OURS = (("Cora", "gcn"), ("Computers", "gcn"), ("PubMed", "sage"))  # beside the paper's, where they are at hand


def wanted(scope: Scope) -> list[tuple[Source, str]]:
    """List the graphs and models."""
    paper = [pair for pair in PRINTED if scope.stand_in or is_there(pair[0], scope.root)]
    mine = [pair for pair in OURS if is_there(pair[0], scope.root)]
    pairs = [*paper[:1], *mine[:1]] if scope.quick else [*paper, *mine]
    return [(source(name, scope), model) for name, model in pairs]


def cell(place: Source, model: str, sampler: str, scope: Scope) -> Cell:
    """Return the cell of a graph, a model and a sampler; that of METIS is Table 3's."""
    if sampler == "metis":
        return table3.cell(place, model, scope)
    sizes = {"hidden": 64, "layers": 3, "epochs": 30 if scope.quick else 100, "ratio": RATIO.get(sampler, 0.5)}
    sizes["seed"] = scope.seed
    settings = {**place.settings, "model": model, **sizes, "sampler": sampler}
    return Cell("invariance", settings, weight=load_of(place, model) / 2)


def cells(scope: Scope) -> list[Cell]:
    """List what is measured."""
    return [cell(place, model, sampler, scope) for place, model in wanted(scope) for sampler in SAMPLERS]


def sheet(scope: Scope, results: Results) -> Sheet:
    """Write the errors by sampler, and the printed ones in brackets, those that were not measured included."""
    rows, pairs = [], wanted(scope)
    others = [pair for pair in PRINTED if pair not in {(place.name, model) for place, model in pairs}]
    for place, model in [*pairs, *((source(name, scope), model) for name, model in others)]:
        for method, name in table3.METHODS.items():
            if (place.name, model) in others and method not in PRINTED[place.name, model]:
                continue
            words = []
            for number, sampler in enumerate(SAMPLERS):
                found = results(cell(place, model, sampler, scope)) if (place.name, model) not in others else {}
                batching = {} if failed(found) else found.get(HALF.get(sampler, sampler), {})
                error = batching.get(method, {}).get("relative_error")
                told = PRINTED.get((place.name, model), {}).get(method, (None,) * len(SAMPLERS))[number]
                words.append(percent(error) + (f" ({told} %)" if told is not None else ""))
            rows.append([place.label, model, name, *words])
    reasons = {reason for each in cells(scope) if (reason := failed(results(each)))}
    notes = [*table3.ABOUT_ROWS, *sorted(f"not measured: {reason}" for reason in reasons)]
    return Sheet(("graph", "GNN", "method", *SAMPLERS.values()), rows, notes)


TABLE8 = Study(
    "table8",
    "Table 8: message invariance under various samplers",
    "A GNN is trained full-batch; batches of about half the graph (METIS: 100 of 200 clusters, as in Table 3; ShaDow: "
    "the subgraphs of a twentieth of the training nodes) by each sampler are compared with the whole graph. Printed "
    "figures stand in brackets.",
    cells,
    sheet,
)
