"""Tables 4 and 5 and Figure 4: seconds per epoch, memory, pre-processing and total time, TOP against others.

>>> [setting.title for setting in efficiency(Scope(quick=True, stand_in=True))]
['GCN & ogbn-arxiv', 'GCNII+JK & ogbn-products']
"""

from __future__ import annotations

from matplotlib.figure import Figure

from topoff.experiments.paper_runs import (
    GCN_ARXIV,
    GCN_REDDIT,
    GCNII_REDDIT,
    GCNII_YELP,
    JK_PRODUCTS,
    NAMES,
    SETTINGS,
    Setting,
    at_hand,
    label,
    run,
)
from topoff.experiments.study import Cell, Found, Results, Scope, Sheet, Study, add_legend, failed, percent

EFFICIENCY: dict[Setting, tuple[str, ...]] = {  # as printed: |B| / |V| in per cent and |B|; seconds per epoch of the
    # full batch, GAS, TOP, and GAS / TOP; the same of MB
    GCN_ARXIV: ("50.0", "84672", "0.63", "0.35", "0.33", "1.07", "2463.03", "1566.89", "1071.27", "1.46"),
    GCN_REDDIT: ("50.0", "116483", "2.05", "1.33", "0.91", "1.46", "2796.30", "2444.25", "1334.78", "1.83"),
    GCNII_REDDIT: ("50.0", "116483", "3.21", "1.94", "1.49", "1.30", "8240.29", "5509.85", "3837.94", "1.44"),
    GCNII_YELP: ("12.5", "89606", "OOM", "4.29", "3.98", "1.08", "OOM", "6752.89", "2231.76", "3.03"),
    JK_PRODUCTS: ("4.0", "97961", "OOM", "70.68", "6.04", "11.70", "OOM", "6574.37", "1406.60", "4.67"),
}
COST: dict[str, dict[str, tuple[str, str, str, str]]] = {  # pre-processing, training, total seconds; MB
    "GCN & ogbn-arxiv": {
        "saint-walk": ("0.0", "122.0", "122.0", "1144.1"),
        "cluster": ("1.7", "92.8", "94.5", "1312.0"),
        "gas": ("3.0", "105.0", "108.0", "1566.9"),
        "top": ("5.0", "99.0", "104.0", "1071.3"),
    },
    "SAGE & ogbn-arxiv": {
        "saint-walk": ("0.0", "114.5", "114.5", "1716.2"),
        "cluster": ("1.6", "93.3", "94.9", "1450.1"),
        "gas": ("3.0", "107.8", "110.7", "1616.1"),
        "top": ("5.3", "98.9", "104.1", "1110.2"),
    },
    "GAT & ogbn-arxiv": {
        "saint-walk": ("0.0", "63.3", "63.3", "2060.9"),
        "cluster": ("1.7", "43.7", "45.4", "2253.6"),
        "gas": ("3.0", "52.8", "55.7", "3025.9"),
        "top": ("4.4", "58.7", "63.1", "3177.9"),
    },
    "GCN & Reddit": {
        "saint-walk": ("0.0", "387.6", "387.6", "1398.2"),
        "cluster": ("14.9", "351.7", "366.7", "1955.2"),
        "gas": ("16.6", "532.0", "548.6", "2444.3"),
        "top": ("20.1", "364.0", "384.1", "1334.8"),
    },
    "GCNII & Reddit": {
        "saint-walk": ("0.0", "672.0", "672.0", "3935.2"),
        "cluster": ("14.7", "595.0", "609.7", "4242.2"),
        "gas": ("17.4", "776.0", "793.4", "5509.9"),
        "top": ("21.2", "596.0", "617.2", "3837.9"),
    },
    "GCNII & Yelp": {
        "saint-walk": ("0.0", "1648.6", "1648.6", "6011.7"),
        "cluster": ("12.6", "1871.6", "1884.2", "5940.4"),
        "gas": ("17.3", "2145.0", "2162.3", "6752.9"),
        "top": ("25.3", "1990.0", "2015.3", "2231.8"),
    },
    "GCNII+JK & ogbn-products": {
        "cluster": ("35.5", "3964.4", "3999.9", "2048.7"),
        "gas": ("45.5", "7068.0", "7113.5", "6574.4"),
        "top": ("35.8", "604.0", "639.8", "1406.6"),
    },
    "GCNII+JK & ogbn-papers100M": {
        "cluster": ("0.00", "1007.42", "1007.42", "1526.91"),
        "top": ("144.53", "1094.01", "1238.54", "1560.34"),
    },
}
COMPARED = ("full", "gas", "top")


def efficiency(scope: Scope) -> list[Setting]:
    """List the settings of Table 4."""
    found = at_hand(list(EFFICIENCY), scope)
    return [each for each in found if each in (GCN_ARXIV, JK_PRODUCTS)] if scope.quick else found


def efficiency_cells(scope: Scope) -> list[Cell]:
    """List the trainings of Table 4."""
    return [run(setting, method, scope) for setting in efficiency(scope) for method in COMPARED]


def efficiency_sheet(scope: Scope, results: Results) -> Sheet:
    """Write sizes of batches, seconds per epoch and peak memory, the printed ones (of a GPU) in brackets."""
    columns = ("model & graph", "|B| / |V|", "|B|", *(f"s per epoch, {NAMES[m]}" for m in COMPARED), "GAS / TOP")
    columns += (*(f"MB, {NAMES[m]}" for m in COMPARED), "GAS / TOP, memory")
    rows = []
    for setting, told in EFFICIENCY.items():  # those that were not measured, too, for what is printed of them
        measured = setting in efficiency(scope)
        found = {method: results(run(setting, method, scope)) if measured else {} for method in COMPARED}
        seconds = _compared(found, "epoch_seconds")
        memory = _compared(found, "train_peak_rss_mb")
        ours = [*_sizes(setting, found["top"]), *seconds, *memory]
        printed = [f"({told[0]} %)", *(f"({each})" for each in told[1:])]
        rows.append([label(setting, scope), *(f"{new} {old}" for new, old in zip(ours, printed, strict=True))])
    return Sheet(columns, rows, [MEMORY, SIZES])


def _sizes(setting: Setting, found: Found) -> list[str]:
    """Write the share of the nodes in a batch and their number; of training nodes alone neither is in a result."""
    if not found or failed(found) or setting.train_only:
        return ["-", "-"]
    share = found["epochs"] / found["steps"]
    return [percent(share, digits=1), f"{share * found['nodes']:.0f}"]


def _compared(found: dict[str, Found], key: str) -> list[str]:
    """Write a figure of the full batch, GAS and TOP, and how many times TOP's is that of GAS."""
    good = {method: row[key] or row["peak_rss_mb"] for method, row in found.items() if row and not failed(row)}
    words = [
        f"{good[method]:.4g}" if method in good else f"- {failed(found[method]) or ''}".strip() for method in COMPARED
    ]
    gas, top = good.get("gas"), good.get("top")
    return [*words, f"{gas / top:.2f}" if gas and top else "-"]


def efficiency_draw(scope: Scope, results: Results) -> Figure:
    """Draw runtime and memory relative to GAS (Figure 4)."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    for number, (key, title) in enumerate((("epoch_seconds", "runtime per epoch"), ("train_peak_rss_mb", "memory")), 1):
        axes, places = figure.add_subplot(1, 2, number), efficiency(scope)
        for offset, method in enumerate(COMPARED):
            heights = []
            for setting in places:
                gas, own = (results(run(setting, m, scope)).get(key) for m in ("gas", method))
                heights.append(own / gas if own and gas else 0.0)
            axes.bar([x + 0.27 * offset for x in range(len(places))], heights, 0.25, label=NAMES[method])
        axes.set_xticks([x + 0.27 for x in range(len(places))], [s.title for s in places], rotation=15, fontsize=7)
        axes.set(title=f"{title}, relative to GAS")
        add_legend(axes)
    return figure


def cost_settings(scope: Scope) -> list[Setting]:
    """List the settings of Table 5."""
    found = at_hand(SETTINGS, scope)
    return [each for each in found if each in (GCN_ARXIV, JK_PRODUCTS)] if scope.quick else found


def cost_cells(scope: Scope) -> list[Cell]:
    """List the trainings of Table 5."""
    return [run(setting, method, scope) for setting in cost_settings(scope) for method in COST[setting.title]]


def cost_sheet(scope: Scope, results: Results) -> Sheet:
    """Write pre-processing, training and total seconds and memory, the printed ones (of a GPU) in brackets."""
    rows = []
    for setting in SETTINGS:
        measured = setting in cost_settings(scope)
        for method, told in COST[setting.title].items():
            found: Found = results(run(setting, method, scope)) if measured else {"failed": "not measured here"}
            if reason := failed(found):
                cells = [f"- ({each})" for each in told] + [reason]
            else:
                steps = found["epoch_seconds"] * found["epochs"]
                memory = found["train_peak_rss_mb"] or found["peak_rss_mb"]
                ours = (found["preprocess_seconds"], steps, found["preprocess_seconds"] + steps, memory)
                cells = [f"{new:.4g} ({old})" for new, old in zip(ours, told, strict=True)] + [
                    f"{found['epochs']} epochs"
                ]
            rows.append([label(setting, scope), NAMES[method], *cells])
    columns = ("model & graph", "method", "pre-processing, s", "training, s", "total, s", "memory, MB", "")
    return Sheet(columns, rows, [MEMORY])


MEMORY = (
    "Ours: resident memory of the process on a CPU, before the first exact evaluation; printed: memory of a GPU (RTX "
    "2080 Ti). Only ratios can be compared. Refreshes are included in TOP's seconds."
)
SIZES = "|B| is the mean over an epoch's batches; where batches hold training nodes alone, it is not counted."
TABLE4 = Study(
    "table4",
    "Table 4: seconds per epoch and memory of the full batch, GAS and TOP",
    "The paper's settings, each run in a process of its own. Printed figures stand in brackets.",
    efficiency_cells,
    efficiency_sheet,
)
FIGURE4 = Study(
    "figure4",
    "Figure 4: relative runtime per epoch and memory",
    "What Table 4 measures, relative to GAS. The paper says that TOP is up to 11x as fast as GAS, on ogbn-products.",
    efficiency_cells,
    efficiency_sheet,
    efficiency_draw,
)
TABLE5 = Study(
    "table5",
    "Table 5: the cost of pre-processing and training",
    "The same settings for all methods. Printed figures stand in brackets.",
    cost_cells,
    cost_sheet,
)
