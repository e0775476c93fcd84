"""Where an epoch stands: handed out once each, left early, saved and resumed."""

from topoff.batching.position import Position


def test_an_epoch_hands_out_every_batch_once_and_goes_on_to_the_next() -> None:
    position = Position()
    assert list(position.walk([2, 0, 1])) == [2, 0, 1]
    assert (position.epoch, position.taken) == (1, 0)


def test_an_epoch_that_was_left_early_is_over() -> None:
    position = Position()
    assert next(position.walk([2, 0, 1])) == 2
    position.begin_epoch()
    assert (position.epoch, position.taken) == (1, 0)


def test_a_loaded_position_goes_on_in_the_middle_of_its_epoch() -> None:
    position, other = Position(), Position()
    assert next(position.walk([2, 0, 1])) == 2
    other.load_state_dict(position.state_dict())
    other.begin_epoch()
    assert list(other.walk([2, 0, 1])) == [0, 1]
    assert (other.epoch, other.taken, other.resumed) == (1, 0, False)


def test_a_position_at_the_end_of_an_epoch_has_nothing_left() -> None:
    position = Position()
    position.load_state_dict({"epoch": 3, "position": 1})
    assert list(position.walk([0])) == []
    assert position.epoch == 4
