"""The name under which a compensation is kept on disk: a hash of all that it depends on.

>>> from torch_geometric.data import Data
>>> from torch_geometric.nn import GCN
>>> from topoff import TOP, load
>>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
>>> data = load(Data(x=torch.rand(20, 3), edge_index=ring), labels=False)
>>> model = GCN(3, 4, num_layers=2, out_channels=2)
>>> loader = TOP(model, data, ratio=0.5, rank=2, batches="random").prepare()
>>> fingerprint_of(loader, model, [model]) == fingerprint_of(loader, model, [GCN(3, 4, num_layers=2, out_channels=2)])
False
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from topoff.compensation.loader import Loader
from topoff.forward.arguments import call_text
from topoff.forward.call import evaluating, plain
from topoff.forward.fingerprint import described, fingerprint
from topoff.machine.cache import content_hash

VERSIONED = ("topoff", "torch", "torch_geometric")  # packages that a compensation depends on
LAYOUT = 4  # of a compensation on disk; one more whenever other rows are kept, or others are estimated


def fingerprint_of(loader: Loader, model: nn.Module, networks: Sequence[nn.Module]) -> str:
    """Hash all that a compensation depends on: graph, batches, networks (code and weights), estimator, versions."""
    tensors = [*loader.sets.of(0)]
    tensors += [value for network in networks for value in copied(network).values() if value is not None]
    settings = {key: value for key, value in vars(loader.compensator).items() if isinstance(value, int | float | str)}
    graph = described(loader.graph.data.to_dict())  # all of it: a model may read any attribute
    called, plan = call_text(plain(model), loader.graph.data), loader.plan
    needs = repr((plan.operators, plan.flows, plan.known_hops, sorted(plan.deep), plan.wide))
    words = [graph, called, needs, fingerprint(plain(model)), repr((LAYOUT, settings)), *map(version, VERSIONED)]
    exact = [tensor.float() if tensor.dtype == torch.bfloat16 else tensor for tensor in tensors]  # numpy lacks it
    return content_hash(*words, *(tensor.detach().cpu().numpy() for tensor in exact))


def copied(model: nn.Module) -> dict[str, Any]:
    """Return a copy of a model's state_dict; in eval mode, for some (spectral norm) move as they are read."""
    with evaluating(model):
        return copy.deepcopy(plain(model).state_dict())
