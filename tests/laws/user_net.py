"""The shape of the user models' tables: a record per model, sizes, and the true reasons of refusals."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

FEATURES, HIDDEN, OUT, RELATIONS = 4, 6, 3, 3

# The true reasons, as loosely as they can be told.
MIXES = r"all nodes|other nodes|of other|mixes"  # a node's output depends on nodes that it has no edge to
POOLS = r"(one row|output|outputs|rows?) per node|pool"
RANDOM = r"random|repeat|twice|same output"
SIZE = r"number of (nodes|rows|edges)|how many (nodes|edges)"
NO_CONV = r"at least one PyG MessagePassing layer"
TABLE = r"whole (graph|table)|every node|row for each|n_id|position|order of the nodes"
EDGES = r"edges|" + MIXES
IN_PLACE = r"in place|changes? .*features|writes?"


@dataclass(frozen=True)
class User:
    """Describe a model as users write it, how it is called, and the verdict: exact, or refused for a reason."""

    make: Callable[[Data], nn.Module]
    call: Callable[[nn.Module, Data], Any] | None = None  # None: arguments by name
    refused: str = ""  # what the sentence must say, as a pattern; empty: exact
    either: bool = False  # exact, or refused for that reason: both are honest
    needs: tuple[str, ...] = ()  # attributes of the graph besides those that forward names
    random: bool = False  # draws random numbers in training mode, one or more per row
    random_edges: bool = False  # draws them per edge: another order of the edges is another draw
    known: bool = False  # one conv on the features, nothing random: exact in training too, however the graph is cut
    ordered: bool = False  # wants the edges in the order of their receivers


class Net(nn.Module):
    """Keep the given parts under their names, so that a model below is its forward alone."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Two(Net):
    """Stack two convs."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).tanh(), edge_index)


def two(conv: Callable[..., nn.Module], **options: Any) -> User:
    """Return a stack of two convs of one kind."""
    return User(lambda d: Two(conv1=conv(FEATURES, HIDDEN, **options), conv2=conv(HIDDEN, OUT, **options)))


def first(**options: Any) -> nn.Module:
    return GCNConv(FEATURES, HIDDEN, **options)


def last(width: int = HIDDEN) -> nn.Module:
    return GCNConv(width, OUT)


def plainly(model: nn.Module, batch: Data) -> Any:
    """Call the model as tutorials do."""
    return model(batch.x, batch.edge_index)
