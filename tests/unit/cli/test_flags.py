"""Flags made of settings: their defaults in words are true."""

import inspect

import pytest
import torch
from torch_geometric.data import Data

from topoff.cli.flags import UNSET, with_settings
from topoff.methods.registry import METHODS
from topoff.training.config import FIELDS, make_config
from topoff.training.defaults import choose


def shown() -> dict[str, str]:
    """Return the help of every flag that a verb gets from the settings."""

    def verb(**settings: object) -> None:
        """Do nothing."""

    parameters = inspect.signature(with_settings(verb)).parameters.values()
    return {parameter.name: parameter.default.help for parameter in parameters}


def test_every_setting_is_a_flag() -> None:
    assert shown().keys() == FIELDS.keys()


def test_what_is_said_to_be_chosen_from_the_graph_is_chosen_there() -> None:
    ring = torch.stack([torch.arange(30_000), torch.arange(30_000).roll(1)])
    data = Data(x=torch.ones(30_000, 1), edge_index=ring, train_mask=torch.arange(30_000) < 3_000)
    chosen = {
        choice.what for name in METHODS for choice in choose(make_config({"dataset": "x", "method": name}), data)[1]
    }
    said = {name for name, text in shown().items() if "chosen from the graph" in text}
    assert said == chosen - UNSET.keys()


@pytest.mark.parametrize(("name", "words"), [("outer_decay", "as --weight-decay"), ("fanout", "the method's own")])
def test_other_defaults_are_said_as_they_are(name: str, words: str) -> None:
    assert f"[default: {words}]" in shown()[name]
    assert "default" not in shown()["parts"]
