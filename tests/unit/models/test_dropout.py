"""Fast dropout has the statistics of torch's own, from torch's generator, and leaves no trace in a model; notes of it.

Statistical tolerances are four standard deviations of what is measured, at a fixed seed.
"""

import copy
import gc
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from topoff.models.dropout import STEPS, Dropout, DropoutNotes, draw_mask, dropout, fast_dropout

SHAPE = (1003, 509)  # no multiple of the elements that one word decides over
COUNT = SHAPE[0] * SHAPE[1]
PROBABILITIES = [0.1, 0.2, 0.3, 0.5, 0.6, 0.75, 0.9]  # 0.5 and 0.75 need eight bits, the others sixteen


def mask(p: float = 0.3, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Return which elements dropout keeps, as numbers."""
    return (dropout(torch.ones(shape, dtype=torch.float64), p) > 0).double()


def correlation(one: Tensor, other: Tensor) -> float:
    """Return the correlation coefficient of two equally large sets of numbers, in standard deviations from zero."""
    both = torch.stack([one.flatten(), other.flatten()])
    return float(torch.corrcoef(both)[0, 1]) * math.sqrt(both.size(1))


# ---- statistics


@pytest.mark.parametrize("p", PROBABILITIES)
def test_elements_are_kept_with_the_probability_asked_for(p: float) -> None:
    kept = 0.0
    for _ in range(4):
        kept += float(mask(p).sum())
    assert abs(kept / (4 * COUNT) - (1 - p)) < 4 * math.sqrt(p * (1 - p) / (4 * COUNT))


@pytest.mark.parametrize("p", [*PROBABILITIES, 1 / 3, 0.001, 1e-9, 0.9999, 1 - 1e-9])
def test_the_scale_is_of_the_true_probability(p: float) -> None:
    scale = float(dropout(torch.ones(2_000_000, dtype=torch.float64), p).max())
    kept = STEPS / scale
    assert kept == pytest.approx(round(kept), abs=1e-6)
    assert abs(kept / STEPS - (1 - p)) < 2e-5


@pytest.mark.parametrize("p", PROBABILITIES)
def test_mean_and_variance_are_those_of_torch(p: float) -> None:
    out = dropout(torch.ones(SHAPE, dtype=torch.float64), p)
    variance = p / (1 - p)
    fourth = p + (1 - p) * variance**4  # moment about the mean: elements are 1 below it or p / (1 - p) above
    assert abs(float(out.mean()) - 1) < 4 * math.sqrt(variance / COUNT)
    second_order = 16 * variance / COUNT  # all that is left for p = 0.5, where the first order vanishes
    assert abs(float(out.var()) - variance) < 4 * math.sqrt((fourth - variance**2) / COUNT) + second_order


@pytest.mark.parametrize("p", [0.3, 0.5])
def test_every_place_in_a_word_keeps_alike(p: float) -> None:
    places = mask(p, (100_000, 8)).mean(0)  # a word without its sign would keep far more or less at one of them
    assert float((places - (1 - p)).abs().max()) < 4 * math.sqrt(p * (1 - p) / 100_000)


@pytest.mark.parametrize("p", [0.3, 0.5])
@pytest.mark.parametrize("dim", [0, 1])
def test_rows_and_columns_spread_as_independent_draws_do(p: float, dim: int) -> None:
    length = SHAPE[1 - dim]
    totals = mask(p).sum(1 - dim)
    statistic = float((totals - length * (1 - p)).square().sum()) / (length * p * (1 - p))  # chi-squared
    assert abs(statistic - len(totals)) < 4 * math.sqrt(2 * len(totals))


@pytest.mark.parametrize("p", [0.3, 0.5])
@pytest.mark.parametrize("lag", [1, 2, 3, 4, 7, 8, SHAPE[1], 624, 1248])
def test_elements_are_independent(p: float, lag: int) -> None:
    flat = mask(p).flatten()
    assert abs(correlation(flat[:-lag], flat[lag:])) < 4


@pytest.mark.parametrize("p", [0.3, 0.5])
def test_successive_calls_are_independent(p: float) -> None:
    assert abs(correlation(mask(p), mask(p))) < 4


# ---- values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_elements_are_dropped_or_scaled(dtype: torch.dtype) -> None:
    x = torch.randn(50, 7).to(dtype)
    out = dropout(x, 0.5)
    assert out.dtype == dtype
    assert torch.equal(out, torch.where(out == 0, 0, 2 * x))
    assert 0 < int((out == 0).sum()) < x.numel()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0,), (0, 5), (2, 3, 5), (1, 1, 1, 9)], ids=str)
@pytest.mark.parametrize("p", [0.3, 0.5])
def test_any_shape(shape: tuple[int, ...], p: float) -> None:
    x = torch.ones(shape)
    assert dropout(x, p).shape == shape
    assert draw_mask(x.shape, 1).dtype == torch.int8


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[::2, 1:], lambda x: x[:1].expand(40, -1)])
def test_inputs_need_not_be_contiguous(view: Callable[[Tensor], Tensor]) -> None:
    x = view(torch.randn(30, 20, dtype=torch.float64)).detach().requires_grad_()
    torch.manual_seed(3)
    out = dropout(x, 0.3)
    torch.manual_seed(3)
    assert torch.equal(out, dropout(x.contiguous(), 0.3))
    out.sum().backward()
    assert torch.allclose(x.grad * x, out)


def test_outside_of_training_and_without_dropout_it_is_the_same_tensor() -> None:
    x, state = torch.ones(3), torch.get_rng_state()
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0) is x
    assert torch.equal(torch.get_rng_state(), state)


def test_everything_can_be_dropped() -> None:
    x = torch.ones(3, requires_grad=True)
    out = dropout(x, 1.0)
    out.sum().backward()
    assert out.tolist() == x.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_other_probabilities_are_refused(p: float) -> None:
    with pytest.raises(ValueError, match=rf"Expected p to be between 0 and 1 \(got {p}\)"):
        dropout(torch.ones(3), p, training=False)


def test_other_devices_use_torchs_own() -> None:
    assert dropout(torch.ones(3, 4, device="meta"), 0.3).shape == (3, 4)
    with pytest.raises(ValueError, match=r"generator to be None for a torch\.float32 tensor on 'meta'"):
        dropout(torch.ones(3, device="meta"), 0.3, generator=torch.Generator())


# ---- the generator


def test_the_seed_repeats_the_draws() -> None:
    first, second = mask(), mask()
    torch.manual_seed(0)
    assert torch.equal(mask(), first)
    assert torch.equal(mask(), second)
    assert not torch.equal(first, second)


def test_the_state_of_the_generator_resumes_the_draws() -> None:
    mask(shape=(7,))
    state, expected = torch.get_rng_state(), [mask(shape=(101,)), torch.rand(3)]
    torch.set_rng_state(state)
    assert torch.equal(mask(shape=(101,)), expected[0])
    assert torch.equal(torch.rand(3), expected[1])


def test_a_generator_of_ones_own_is_used_alone() -> None:
    x, state = torch.ones(99), torch.get_rng_state()
    outs = [dropout(x, 0.3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    assert torch.equal(torch.get_rng_state(), state)


# ---- gradients


@pytest.mark.parametrize("p", [0.3, 0.5])
def test_the_gradient_is_the_mask_times_the_scale(p: float) -> None:
    x = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
    out = dropout(x, p)
    weights = torch.randn_like(out)
    (out * weights).sum().backward()
    assert torch.allclose(x.grad, out.detach() / x.detach() * weights)


def test_gradients_agree_with_differences_to_second_order() -> None:
    def repeated(x: Tensor) -> Tensor:
        return dropout(x, 0.3, generator=torch.Generator().manual_seed(1)).pow(3)

    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(repeated, x)
    assert torch.autograd.gradgradcheck(repeated, x)


def test_recomputed_layers_draw_the_same_again() -> None:
    layer = nn.Sequential(nn.Linear(5, 5), Dropout(0.3), nn.Tanh(), Dropout(0.5)).double()
    x = torch.randn(9, 5, dtype=torch.float64)
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(4)
        out = checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
        gradients.append(torch.autograd.grad(out.sum(), layer[0].weight)[0])
    assert torch.equal(*gradients)


def test_one_module_may_be_used_twice() -> None:
    drop = Dropout(0.5)
    x = torch.ones(200, requires_grad=True)
    first, second = drop(x), drop(x)
    (first + 10 * second).sum().backward()
    assert not torch.equal(first, second)
    assert torch.equal(x.grad, first.detach() + 10 * second.detach())


# ---- modules


def test_the_module_is_the_function() -> None:
    x, module = torch.ones(50), Dropout(0.3)
    torch.manual_seed(2)
    out = module(x)
    torch.manual_seed(2)
    assert torch.equal(out, dropout(x, 0.3))
    assert module.eval()(x) is x


def test_in_place_modules_write_into_their_input() -> None:
    x, weight = torch.ones(50), torch.ones(50, requires_grad=True)
    torch.manual_seed(2)
    expected = dropout(x, 0.3)
    torch.manual_seed(2)
    written = x * weight
    assert Dropout(0.3, inplace=True)(written) is written
    written.sum().backward()
    assert torch.equal(written, expected)
    assert torch.equal(weight.grad, expected)


class Own(nn.Dropout):
    """Have a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return input + self.p


def network() -> nn.Sequential:
    """Return a model with dropout at several depths, a subclass of it, and one module in two places."""
    shared = nn.Dropout(0.3)
    return nn.Sequential(nn.Linear(4, 4), shared, nn.Sequential(nn.ReLU(), nn.Dropout(0.5)), shared, Own(0.2))


def after_seed(model: nn.Module, x: Tensor) -> Tensor:
    """Return the model's output right after seeding."""
    torch.manual_seed(1)
    return model(x)


def test_a_model_uses_it_inside_with_and_not_afterwards() -> None:
    model, x = network(), torch.randn(30, 4)
    before, keys, shown = after_seed(model, x), list(model.state_dict()), repr(model)
    contents = [dict(vars(module)) for module in model.modules()]
    with fast_dropout(model):
        fast = after_seed(model, x)
        assert list(model.state_dict()) == keys
        assert repr(model) == shown
    torch.manual_seed(1)
    hidden = dropout(F.relu(dropout(model[0](x), 0.3)), 0.5)
    assert torch.equal(fast, dropout(hidden, 0.3) + 0.2)
    assert not torch.equal(fast, before)
    assert torch.equal(after_seed(model, x), before)
    assert [dict(vars(module)) for module in model.modules()] == contents
    assert type(model[1]) is type(model[2][1]) is nn.Dropout
    assert repr(model) == shown


def test_modes_are_heeded_inside_with() -> None:
    model, x = network(), torch.randn(30, 4)
    with fast_dropout(model):
        assert torch.equal(model.eval()(x), model(x))
        assert not torch.equal(model.train()(x), model(x))


def test_errors_inside_with_leave_no_trace() -> None:
    model = network()
    with pytest.raises(RuntimeError, match="halfway"), fast_dropout(model):
        raise RuntimeError("halfway")
    assert type(model[1]) is nn.Dropout


def test_it_can_be_nested() -> None:
    model, x = network(), torch.randn(30, 4)
    with fast_dropout(model):
        fast = after_seed(model, x)
        with fast_dropout(model[2]), fast_dropout(model):
            assert torch.equal(after_seed(model, x), fast)
        assert torch.equal(after_seed(model, x), fast)
    assert type(model[2][1]) is nn.Dropout


def test_modules_patched_by_others_and_hooks_stay_so() -> None:
    model, seen = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)), []
    model[0].forward = lambda input: input + 1  # type: ignore[method-assign]
    model[1].register_forward_hook(lambda module, args, out: seen.append(out))
    with fast_dropout(model):
        out = model(torch.zeros(3))
    assert seen[0] is out
    assert set(out.tolist()) <= {0.0, 2.0}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of the compiler's own
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("fast_first", [False, True])
def test_compiled_models_draw_as_plain_ones(fast_first: bool) -> None:  # noqa: FBT001
    torch._dynamo.reset()
    model, x = network(), torch.randn(30, 4)
    plain, before = copy.deepcopy(model), None
    compiled = torch.compile(model, backend="aot_eager")
    if not fast_first:  # what was compiled without must not serve inside `with`
        before = after_seed(compiled, x)
        assert torch.equal(before, after_seed(plain, x))
    with fast_dropout(compiled), fast_dropout(plain):
        outs = after_seed(compiled, x), after_seed(plain, x)
        assert torch.equal(*outs)
        sum(out.sum() for out in outs).backward()
        assert torch.equal(model[0].weight.grad, plain[0].weight.grad)
    assert torch.equal(after_seed(compiled, x), after_seed(plain, x))
    assert before is None or not torch.equal(before, outs[0])


# ---- notes


@pytest.mark.parametrize("way", [F.dropout, dropout, nn.Dropout(0.5), Dropout(0.5)], ids=["F", "own", "nn", "fast"])
def test_dropout_is_noted_with_its_source_and_probability(way: nn.Module) -> None:
    x = torch.ones(2000, 4)
    with DropoutNotes() as notes:
        out = way(x)
        other = out + 1
    note = notes.of(out)
    assert note is not None
    assert note.source is x
    assert notes.of(other) is None
    assert notes.of(x) is None
    again = note.again(torch.full((2000, 4), 3.0))
    assert sorted(again.unique().tolist()) == [0.0, 6.0]
    assert 0.45 < float((again == 0).double().mean()) < 0.55
    assert not torch.equal(again == 0, out == 0)
    with DropoutNotes() as notes:
        pass
    assert notes.of(way(x)) is None  # outside nothing is noted


@pytest.mark.parametrize("kind", [nn.Dropout, Dropout])
def test_dropout_in_place_is_noted_too(kind: type[nn.Dropout]) -> None:
    x = torch.rand(50, 4) + 1
    before = x.clone()
    with DropoutNotes() as notes:
        out = kind(0.5, inplace=True)(x)
    assert out is x
    assert not torch.equal(x, before)
    note = notes.of(out)
    assert note is not None
    assert torch.equal(note.source, before)


@pytest.mark.parametrize("way", [F.dropout, dropout], ids=["F", "own"])
def test_dropout_that_does_nothing_is_not_noted(way: nn.Module) -> None:
    x = torch.ones(5)
    with DropoutNotes() as notes:
        assert way(x, 0.5, training=False) is x
        assert way(x, 0.0) is x
    assert notes.of(x) is None


def test_the_draws_are_those_without_notes() -> None:
    x = torch.rand(100, 8)
    for way in (F.dropout, dropout):
        torch.manual_seed(5)
        plain = way(x, 0.3)
        torch.manual_seed(5)
        with DropoutNotes():
            assert torch.equal(way(x, 0.3), plain)


def test_a_note_ends_with_its_tensor() -> None:
    with DropoutNotes() as notes:
        out = F.dropout(torch.ones(5))
    assert len(notes._notes) == 1
    del out
    gc.collect()
    assert len(notes._notes) == 0
