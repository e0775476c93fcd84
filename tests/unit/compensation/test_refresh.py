"""When the compensation is estimated anew."""

import pytest

from topoff.compensation.refresh import LONGEST, Refreshing


def adaptive(*certificates: float) -> Refreshing:
    """Return an adaptive policy that has seen some certificates."""
    policy = Refreshing.parse("adaptive")
    for certificate in certificates:
        policy.observe(certificate)
    return policy


@pytest.mark.parametrize("text", ["never", "every=1", "every=12", "adaptive"])
def test_a_policy_is_written_as_it_was_read(text: str) -> None:
    assert str(Refreshing.parse(text)) == text


def test_never_is_never_due() -> None:
    assert not any(Refreshing.parse("never").due(age) for age in (0, 1, 1000))


def test_every_is_due_at_that_age_and_after() -> None:
    policy = Refreshing.parse("every=3")
    assert [policy.due(age) for age in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize(
    "text", ["", "Every=2", "every", "every=", "every=0", "every=-1", "every=1.5", "every=²", "each=5", "adaptive=2"]
)
def test_other_policies_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"refresh to be 'never', 'adaptive' or 'every=E' with E >= 1 \(got '{text}'"):
        Refreshing.parse(text)


@pytest.mark.parametrize("policy", [5, None])
def test_a_policy_that_is_no_string_is_refused(policy: object) -> None:
    with pytest.raises(ValueError, match=rf"refresh to be .* \(got '{policy}'\)"):
        Refreshing.parse(policy)  # type: ignore[arg-type]


def test_a_fixed_interval_does_not_follow_certificates_but_keeps_the_last() -> None:
    policy = Refreshing.parse("every=4")
    policy.observe(0.01)
    policy.observe(0.9)
    assert (policy.interval, policy.last) == (4, 0.9)


@pytest.mark.parametrize(
    ("certificates", "interval"),
    [
        ((), 1),
        ((0.3,), 2),  # the first has nothing to be compared with
        ((0.3, 0.3), 4),  # as good as before
        ((0.3, 0.36), 4),  # 1.2 times, still the same
        ((0.3, 0.4), 2),  # 1.33 times: neither
        ((0.3, 0.3, 0.5), 2),  # 1.67 times: half
        ((0.3, 0.6, 1.2, 2.4), 1),  # never below one epoch
        ((0.01, 0.04), 4),  # four times, but small
        ((0.01, 0.06), 1),  # and not small any more: half of 2
        ((0.6, 0.1), 4),  # better than before
    ],
    ids=str,
)
def test_an_adaptive_interval_by_hand(certificates: tuple[float, ...], interval: int) -> None:
    assert adaptive(*certificates).interval == interval


def test_an_adaptive_interval_stops_growing() -> None:
    assert adaptive(*[0.01] * 20).interval == LONGEST


def test_an_adaptive_policy_is_due_by_its_interval() -> None:
    policy = adaptive(0.3, 0.3)
    assert [policy.due(age) for age in (3, 4)] == [False, True]
