"""What a model is not to be given and not to change is refused in one sentence."""

import pytest
import torch
from torch_geometric.data import Data

from topoff.forward.foreign import (
    ForeignInputError,
    check_unchanged,
    is_same,
    raise_foreign,
    raise_in_place,
    raise_narrow,
)


class Narrow:
    wide = None


class Wide:
    wide = Data()


def batch_of(x: torch.Tensor, *, wide: bool = False) -> Data:
    return Data(x=x, supplement=Wide() if wide else Narrow())


def test_equal_features_are_the_batchs_own() -> None:
    own = torch.rand(3, 2)
    check_unchanged(batch_of(own.clone()), {"x": own}, ["x"])
    assert is_same(own.clone(), own)
    assert not is_same(own.double(), own)
    assert not is_same(own, None)


def test_features_to_which_something_learnable_is_added_are_welcome_but_for_wide_models() -> None:
    own = torch.rand(3, 2)
    learnt = own + torch.zeros(3, 2, requires_grad=True) + 1
    check_unchanged(batch_of(learnt), {"x": own}, ["x"])
    with pytest.raises(ValueError, match="a batch as it was handed out"):
        check_unchanged(batch_of(learnt, wide=True), {"x": own}, ["x"])


def test_refusals_are_sentences() -> None:
    with pytest.raises(ValueError, match=r"leave its input features alone \(got 'pos' changed in place\)"):
        raise_in_place("pos")
    with pytest.raises(ForeignInputError, match=r"the batch's own 'edge_attr' \(got another tensor"):
        raise_foreign("GCNConv 'conv'", "edge_attr")
    with pytest.raises(ValueError, match=r"call it with what `with compensating\(model, batch\) as seen:` yields"):
        raise_narrow("GCNConv 'conv'")
