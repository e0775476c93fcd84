"""When the compensation is estimated anew."""

import pytest

from topoff.compensation.refresh import EARLY, LONGEST, SHARE, Refreshing


def auto(*missed: float, price: float = 0.15) -> Refreshing:
    """Return an automatic policy whose refreshes have found some messages missing."""
    policy = Refreshing.parse("auto")
    policy.begin(price=price)
    for share in missed:
        policy.observe(share)
    return policy


@pytest.mark.parametrize("text", ["never", "every=1", "every=12", "auto"])
def test_a_policy_is_written_as_it_was_read(text: str) -> None:
    assert str(Refreshing.parse(text)) == text


def test_never_is_never_due() -> None:
    assert not any(Refreshing.parse("never").due(age) for age in (0, 1, 1000))


def test_every_is_due_at_that_age_and_after() -> None:
    policy = Refreshing.parse("every=3")
    assert [policy.due(age) for age in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize(
    "text", ["", "Every=2", "every", "every=", "every=0", "every=-1", "every=1.5", "every=²", "each=5", "auto=2"]
)
def test_other_policies_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"refresh to be 'auto', 'never' or 'every=E' with E >= 1 \(got '{text}'"):
        Refreshing.parse(text)


@pytest.mark.parametrize("policy", [5, None])
def test_a_policy_that_is_no_string_is_refused(policy: object) -> None:
    with pytest.raises(ValueError, match=rf"refresh to be .* \(got '{policy}'\)"):
        Refreshing.parse(policy)  # type: ignore[arg-type]


def test_a_fixed_interval_does_not_follow_certificates_but_keeps_the_last() -> None:
    policy = Refreshing.parse("every=4")
    policy.observe(0.001)
    policy.observe(0.9)
    assert (policy.interval, policy.last) == (4, 0.9)


def test_adaptive_is_the_former_name_of_auto() -> None:
    assert Refreshing.parse("adaptive") == Refreshing.parse("auto")


@pytest.mark.parametrize(
    ("missed", "interval"),
    [
        ((), 1),
        ((0.001,), 2),  # little is missed: wait twice as long
        ((0.001, 0.001), 4),
        ((0.001, 0.02), 2),  # some: as long as before
        ((0.001, 0.001, 0.2), 2),  # much: half
        ((0.5, 0.5), 1),  # never below one epoch
    ],
    ids=str,
)
def test_an_automatic_interval_by_hand(missed: tuple[float, ...], interval: int) -> None:
    assert auto(*missed).interval == interval


def test_an_automatic_interval_stops_growing() -> None:
    assert auto(*[0.001] * 20).interval == LONGEST


def test_a_dear_refresh_is_rare_but_for_the_first_few() -> None:
    intervals = [auto(*[0.5] * count, price=3.0).interval for count in range(5)]
    assert intervals == [2, 5, 10, 20, 20]


@pytest.mark.parametrize(("outside", "interval"), [(0.1, 10), (0.5, 10), (0.6, 2), (1.0, 2)])
def test_few_messages_from_outside_need_few_early_refreshes(outside: float, interval: int) -> None:
    policy = Refreshing.parse("auto")
    policy.begin(price=3.0, outside=outside)
    assert policy.interval == interval


def test_batches_of_few_nodes_may_be_refreshed_every_epoch_while_much_is_missing() -> None:
    intervals = []
    for missed in ((), (0.2,), (0.2, 0.01), (0.01, 0.01, 0.2)):
        policy = Refreshing.parse("auto")
        policy.begin(price=12.0, scarce=True)
        for each in missed:
            policy.observe(each)
        intervals.append(policy.interval)
    assert intervals == [1, 1, 2, 2]


def test_refreshes_of_batches_of_few_nodes_grow_rare() -> None:
    policy, epochs = Refreshing.parse("auto"), [0]
    policy.begin(price=40.0, scarce=True)
    while epochs[-1] < 64:
        epochs.append(epochs[-1] + policy.interval)
        policy.observe(0.2)
    assert epochs[1:9] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(epochs) - 1 <= 20
    assert policy.interval <= 16


def test_refreshes_take_their_share_of_the_work_at_most() -> None:
    policy, epoch, price = auto(price=0.6), 0, 0.6
    for _ in range(50):
        epoch += policy.interval
        policy.observe(0.9)
    assert 51 * price <= SHARE * epoch + EARLY * price


def test_an_automatic_policy_is_due_by_its_interval() -> None:
    policy = auto(0.001, 0.001)
    assert [policy.due(age) for age in (3, 4)] == [False, True]


@pytest.mark.parametrize(
    ("missed", "why"),
    [
        ((), "first"),
        ((0.001,), "missed 0.1 % of the messages, little; the next one at 2 epochs"),
        ((0.5,), "missed 50.0 % of the messages, much; the next one at 1 epochs"),
    ],
)
def test_a_policy_says_why(missed: tuple[float, ...], why: str) -> None:
    assert auto(*missed).why == why


@pytest.mark.parametrize(
    ("outside", "late", "early"), [(0.6, False, 3), (0.4, False, 1), (0.6, True, 1), (0.4, True, 0)]
)
def test_fewer_refreshes_come_early_after_a_late_first_estimate(outside: float, late: bool, early: int) -> None:  # noqa: FBT001
    policy = Refreshing.parse("auto")
    policy.begin(price=1.2, outside=outside, late=late)
    assert (policy.early, policy.interval) == (early, 8 >> early)
