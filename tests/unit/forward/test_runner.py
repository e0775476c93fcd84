"""One batch's forward on a stack of its own, and what it leaves on modules."""

import contextvars
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from topoff.forward.runner import Attributes, Runner


class One:
    """A batch."""

    def __init__(self) -> None:
        self.data, self.device = Data(x=torch.ones(1, 1)), torch.device("cpu")


def runner_of(forward: Callable[[Runner], Any]) -> Runner:
    """Return a runner of a forward that knows its runner."""
    runner: Runner

    def run(data: Data) -> Any:
        return forward(runner)

    runner = Runner(One(), run)
    return runner


def twice(runner: Runner) -> str:
    runner.hand_in("first")
    runner.hand_in("second")
    return "end"


# stepping


def test_steps_run_to_the_next_thing_handed_in_and_to_the_end() -> None:
    runner = runner_of(twice)
    seen = []
    while not runner.done:
        seen.append(runner.step())
    assert seen == ["first", "second", "end"]


def test_nothing_runs_before_the_first_step_nor_between_steps() -> None:
    done: list[int] = []

    def forward(runner: Runner) -> None:
        done.append(1)
        runner.hand_in(None)
        done.append(2)

    runner = runner_of(forward)
    assert done == []
    runner.step()
    assert done == [1]
    runner.step()
    assert done == [1, 2]


def test_an_error_of_the_forward_is_raised_by_its_step() -> None:
    def forward(runner: Runner) -> None:
        runner.hand_in(1)
        raise ArithmeticError("the model's own trouble")

    runner = runner_of(forward)
    runner.step()
    with pytest.raises(ArithmeticError, match="the model's own trouble"):
        runner.step()
    assert runner.done


def test_the_traceback_of_an_error_shows_where_the_forward_was() -> None:
    def forward(runner: Runner) -> None:
        runner.hand_in(1)
        raise ArithmeticError("the model's own trouble")

    runner = runner_of(forward)
    runner.step()
    with pytest.raises(ArithmeticError, match="trouble") as caught:
        runner.step()
    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert names.index("step") < names.index("forward")
    assert names[-1] == "forward"


def test_closing_ends_a_forward_wherever_it_is() -> None:
    unwound, held = [], []

    def forward(runner: Runner) -> None:
        rows = torch.ones(3)
        held.append(weakref.ref(rows))
        try:
            runner.hand_in(1)
        finally:
            unwound.append(len(rows))

    runners = [runner_of(forward) for _ in range(3)]
    runners[0].step()
    runners[1].step()
    runners[1].step()
    for runner in runners:  # in the middle, at the end, not yet begun
        runner.close()
        runner.close()
    assert unwound == [3, 3]
    assert [rows() for rows in held] == [None, None], "what a forward held is free at once, without a collection"


def test_closing_is_no_error_that_a_model_could_catch() -> None:
    def forward(runner: Runner) -> str:
        try:
            runner.hand_in(1)
        except Exception:
            return "caught"
        return "went on"

    runner = runner_of(forward)
    runner.step()
    runner.close()
    assert not runner.done


def test_a_model_that_catches_everything_is_closed_at_its_next_layer() -> None:
    seen = []

    def forward(runner: Runner) -> None:
        for number in range(3):
            try:
                runner.hand_in(number)
            except BaseException as error:
                seen.append(type(error).__name__)

    runner = runner_of(forward)
    runner.step()
    runner.close()
    assert seen == ["GreenletExit"] * 3


def test_a_layer_in_another_thread_is_refused() -> None:
    def forward(runner: Runner) -> None:
        problems: list[ValueError] = []

        def layer() -> None:
            try:
                runner.hand_in(1)
            except ValueError as error:
                problems.append(error)

        thread = threading.Thread(target=layer)
        thread.start()
        thread.join()
        raise problems[0]

    with pytest.raises(ValueError, match=r"layers to run in the thread .* \(got another one\)"):
        runner_of(forward).step()


def test_forwards_can_run_in_any_thread() -> None:
    found: list[Any] = []

    def work() -> None:
        runner = runner_of(twice)
        found.extend(runner.step() for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["end", "end", "first", "first", "second", "second"]


# what belongs to a thread


def test_context_variables_are_those_of_the_caller_and_stay_inside() -> None:
    variable = contextvars.ContextVar("variable", default=0)

    def forward(runner: Runner) -> list[int]:
        seen = [variable.get()]
        variable.set(variable.get() + 1)
        runner.hand_in(None)
        return [*seen, variable.get()]

    variable.set(7)
    runners = [runner_of(forward) for _ in range(2)]
    for runner in runners:
        runner.step()
        assert variable.get() == 7
    assert [runner.step() for runner in runners] == [[7, 8], [7, 8]]


@pytest.mark.parametrize("inner", [torch.enable_grad, torch.inference_mode, lambda: torch.autocast("cpu")])
def test_a_mode_around_a_layer_is_not_seen_by_other_batches(inner: Callable[[], AbstractContextManager[Any]]) -> None:
    def modes() -> tuple[bool, ...]:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")

    def forward(runner: Runner) -> list[tuple[bool, ...]]:
        seen = [modes()]
        with inner():
            seen.append(modes())
            runner.hand_in(None)
            seen.append(modes())
        return [*seen, modes()]

    with inner():
        expected = modes()
    runners = [runner_of(forward) for _ in range(2)]
    for runner in runners:
        runner.step()
        assert modes() == (True, False, False)
    for runner in runners:
        first, before, after, last = runner.step()
        assert (first, last) == ((False, False, False), (False, False, False))
        assert before == after == (expected if expected[2] == 0 else (False, False, True))


def test_no_gradients_and_the_precision_of_the_caller() -> None:
    def forward(runner: Runner) -> tuple[bool, bool]:
        return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    assert runner_of(forward).step() == (False, False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert runner_of(forward).step() == (False, True)
    assert torch.is_grad_enabled()


# what forwards leave on modules


def noting(model: nn.Module, name: str) -> Runner:
    """Return a runner that notes its name on a module, sleeps, and tells what it finds there."""

    def forward(runner: Runner) -> list[str]:
        assert not hasattr(model, "note")
        model.note = [name]  # type: ignore[assignment]
        runner.hand_in(None)
        model.note.append("later")  # type: ignore[operator, union-attr]
        model.number = 7  # type: ignore[assignment]
        runner.hand_in(None)
        return list(model.note)  # type: ignore[arg-type]

    return runner_of(forward)


def test_what_one_batch_leaves_does_not_reach_another_and_is_gone_in_the_end() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].number = 3
    before = dict(vars(model[0]))
    attributes, runners = Attributes(model), [noting(model[0], name) for name in "ab"]
    for _ in range(2):
        for runner in runners:
            with attributes.of(runner):
                runner.step()
            assert dict(vars(model[0])) == before
    found = []
    for runner in runners:
        with attributes.of(runner):
            found.append(runner.step())
    assert found == [["a", "later"], ["b", "later"]]
    assert dict(vars(model[0])) == before
    assert model[0].number == 3


def test_what_was_changed_is_there_again_at_the_next_step() -> None:
    model = nn.Linear(1, 1)
    model.number = 3
    attributes, first, second = Attributes(model), runner_of(twice), runner_of(twice)
    with attributes.of(first):
        model.number = 4
    with attributes.of(second):
        assert model.number == 3
        del model.number
    with attributes.of(first):
        assert model.number == 4
    assert model.number == 3


def test_an_error_leaves_nothing_behind() -> None:
    model = nn.Linear(1, 1)
    attributes = Attributes(model)

    def fail(runner: Runner) -> None:
        model.note = 1  # type: ignore[assignment]
        raise ArithmeticError("no")

    runner = runner_of(fail)
    with pytest.raises(ArithmeticError, match="no"), attributes.of(runner):
        runner.step()
    assert not hasattr(model, "note")
