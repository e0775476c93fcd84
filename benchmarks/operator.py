"""Time the aggregation operator A @ H, forward + backward, against PyG and torch in one run.

    python benchmarks/operator.py
    python benchmarks/operator.py --nodes 2000 --edges 40000 --features 16 --repeats 2

The graph is uniform random and undirected: both directions of each edge, no duplicates, nodes in no order. All four
hold the same GCN weights (self-loops included), made beforehand. Repeats are interleaved, the minimum counts, and the
results must agree. The last line is one JSON object.
"""

# ruff: noqa: E402
import os
import sys

if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    sys.path.pop(0)  # or this file's name hides the standard library's `operator`

from topoff.machine.memory import keep_freed_memory

keep_freed_memory()

import argparse
import json
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
import torch_geometric
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from topoff.graph.aggregation import aggregation
from topoff.graph.operators import Operator

OURS = "topoff"
WANTED = {"PyG MessagePassing": 4.0, "PyG EdgeIndex.matmul": 2.0}  # how many times faster we must be
TOLERANCE = 1e-4  # between results in float32, relative to the largest entry

Product = Callable[[Tensor], Tensor]  # (n, d) -> (n, d), differentiable


class WeightedSum(MessagePassing):  # type: ignore[misc]  # PyG has no types
    """Sum weighted messages, as GCNConv does after its linear layer."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        """Return A @ x."""
        out: Tensor = self.propagate(edge_index, x=x, edge_weight=edge_weight)
        return out

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        """Weigh the rows of the senders, one per edge."""
        return edge_weight.view(-1, 1) * x_j


def random_graph(nodes: int, edges: int, *, seed: int = 0) -> Tensor:
    """Return the edge_index (2, edges) of a uniform random undirected graph, its edges in random order."""
    if edges > nodes * (nodes - 1) // 2:
        raise ValueError(f"Expected at most half of all {nodes * (nodes - 1):,} edges (got {edges:,}).")
    rng = np.random.default_rng(seed)
    pairs = np.empty(0, dtype=np.int64)
    while len(pairs) < edges // 2:
        low, high = np.sort(rng.integers(nodes, size=(2, edges)), axis=0)
        pairs = np.unique(np.concatenate([pairs, (low * nodes + high)[low < high]]))
    low, high = np.divmod(rng.permutation(pairs)[: edges // 2], nodes)
    both = np.stack([np.concatenate([low, high]), np.concatenate([high, low])])
    return torch.from_numpy(rng.permutation(both, axis=1))


def competitors(edge_index: Tensor, nodes: int) -> dict[str, Product]:
    """Return the four products with the same matrix A, everything that can be made beforehand made."""
    loops, weight = gcn_norm(edge_index, num_nodes=nodes)
    source, target = loops
    conv = WeightedSum()

    order = torch.argsort(target * nodes + source)  # rows of A are receivers
    rows = torch.stack([target[order], source[order]])
    values = weight[order]
    index = EdgeIndex(rows, sparse_size=(nodes, nodes), sort_order="row", is_undirected=True).fill_cache_()

    csr = torch.sparse_coo_tensor(rows, values, (nodes, nodes), is_coalesced=True).to_sparse_csr()

    data = Data(x=torch.zeros(nodes, 1), edge_index=edge_index)
    ours = aggregation(data, Operator(norm="gcn", self_loops=True)).all()
    return {
        OURS: lambda h: ours @ h,
        "PyG MessagePassing": lambda h: conv(h, loops, weight),
        "PyG EdgeIndex.matmul": lambda h: index.matmul(h, input_value=values),
        "torch CSR @ H": lambda h: csr @ h,
    }


def forward_backward(product: Product, h: Tensor, grad: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return the seconds of one forward and backward pass, the output and the gradient."""
    h = h.detach().requires_grad_()
    start = time.perf_counter()
    out = product(h)
    out.backward(grad)  # type: ignore[no-untyped-call]
    seconds = time.perf_counter() - start
    assert h.grad is not None
    return seconds, out.detach(), h.grad


def check_agreement(products: dict[str, Product], h: Tensor, grad: Tensor) -> None:
    """Raise where outputs or gradients differ; also the warm-up."""
    _, out, gradient = forward_backward(products[OURS], h, grad)
    for name, product in products.items():
        _, *others = forward_backward(product, h, grad)
        for mine, other in zip((out, gradient), others, strict=True):
            error = float((mine - other).abs().max() / other.abs().max())
            if not error < TOLERANCE:
                raise ValueError(f"Expected {name} to agree with {OURS} to {TOLERANCE:.0e} (got {error:.1e}).")


def measure(products: dict[str, Product], h: Tensor, grad: Tensor, *, repeats: int) -> dict[str, float]:
    """Return the best milliseconds of each product; the repeats are interleaved."""
    best = dict.fromkeys(products, float("inf"))
    for _ in range(repeats):
        for name, product in products.items():
            best[name] = min(best[name], 1e3 * forward_backward(product, h, grad)[0])
    return best


def show(console: Console, milliseconds: dict[int, dict[str, float]]) -> None:
    """Print milliseconds and how many times slower than ours, one pair of columns per width."""
    table = Table()
    table.add_column("forward + backward", no_wrap=True)
    for features in milliseconds:
        table.add_column(f"F={features}, ms", justify="right")
        table.add_column("times ours", justify="right")
    table.add_column("wanted", justify="right")
    for name in next(iter(milliseconds.values())):
        cells = [f(best, name) for best in milliseconds.values() for f in (_milliseconds, _ratio)]
        table.add_row(name, *cells, f">= {WANTED[name]:g}" if name in WANTED else "")
    console.print(table)


def _milliseconds(best: dict[str, float], name: str) -> str:
    return f"{best[name]:.1f}"


def _ratio(best: dict[str, float], name: str) -> str:
    return f"{best[name] / best[OURS]:.2f}"


def main() -> None:
    """Build the graph, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=5_000_000, help="directed edges")
    parser.add_argument("--features", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "Sparse", UserWarning)  # torch's own notes on its CSR tensors
    console, load = Console(), round(os.getloadavg()[0], 2)
    products = competitors(random_graph(args.nodes, args.edges), args.nodes)
    generator = torch.Generator().manual_seed(0)
    milliseconds = {}
    for features in args.features:
        h, grad = torch.randn(2, args.nodes, features, generator=generator)
        check_agreement(products, h, grad)
        milliseconds[features] = measure(products, h, grad, repeats=args.repeats)
    console.print(f"uniform random graph: {args.nodes:,} nodes, {args.edges:,} directed edges; best of {args.repeats}")
    show(console, milliseconds)
    setting = {
        "threads": torch.get_num_threads(),
        "load_average_before": load,
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
    }
    console.print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in setting.items()))
    faster = {name: min(best[name] / best[OURS] for best in milliseconds.values()) for name in WANTED}
    met = all(faster[name] >= wanted for name, wanted in WANTED.items())
    print(json.dumps({**vars(args), **setting, "milliseconds": milliseconds, "times_faster": faster, "met": met}))


if __name__ == "__main__":
    main()
