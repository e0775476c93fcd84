"""Layers of PyG that no batch can reproduce: refused by name, with a reason and a remedy."""

import pytest
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.nn import attention
from torch_geometric.nn.models import linkx

from topoff.forward.refusals import ATTENTION, GLOBAL, refuse_global

IDLE = [name for name, (reason, _) in GLOBAL.items() if reason == ATTENTION[0]]  # may be there, as long as they rest


def layer(name: str) -> nn.Module:
    """Return an empty layer that has the name and the home of one of PyG's."""
    kind = type(name, (nn.Module,), {"__module__": "torch_geometric.nn.made_up"})
    return kind()


@pytest.mark.parametrize("name", GLOBAL)
def test_a_running_layer_is_refused_with_what_it_does_and_what_to_do(name: str) -> None:
    reason, remedy = GLOBAL[name]
    with pytest.raises(ValueError, match=rf"a node's neighbours \(got {name} 'a.b', which {reason}\): {remedy}\."):
        refuse_global("a.b", layer(name), running=True)


@pytest.mark.parametrize("name", [name for name in GLOBAL if name not in IDLE])
def test_a_layer_is_refused_before_it_runs(name: str) -> None:
    with pytest.raises(ValueError, match=rf"\(got {name} 'a', which"):
        refuse_global("a", layer(name))


@pytest.mark.parametrize("name", IDLE)
def test_attention_that_rests_is_welcome(name: str) -> None:
    refuse_global("a", layer(name))


def test_a_model_is_named_by_its_class() -> None:
    with pytest.raises(ValueError, match=r"\(got GraphUNet, which pools nodes into fewer ones\)"):
        refuse_global("", gnn.GraphUNet(4, 4, 4, depth=2))


def test_other_layers_and_users_own_names_are_welcome() -> None:
    class HGTConv(nn.Module):
        """A layer of a user."""

    refuse_global("a", gnn.GCNConv(4, 4), running=True)
    refuse_global("a", HGTConv(), running=True)


def test_every_name_is_one_of_pygs() -> None:
    homes = (gnn, attention, linkx)
    assert [name for name in GLOBAL if not any(hasattr(home, name) for home in homes)] == []
