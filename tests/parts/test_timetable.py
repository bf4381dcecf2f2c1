"""Who starts and who arrives when, with turns of which everything can be reckoned by hand."""

from typing import Any

import pytest

from fedstill.core.errors import UsageError
from fedstill.experiment.config import experiment
from fedstill.parts.pace import Async, Equal, Given, LogNormal, Sync
from fedstill.parts.timetable import Timetable, draw_clients, in_flight

TURNS = Given(turns=(1.0, 2.0, 5.0))


def steps(pace: Any, count: int, clients: int = 3, active: int = 3) -> list[tuple[float, list[int], list[list[int]]]]:
    """Of each step: its time, who starts, and who arrives with what staleness."""
    table = Timetable(pace, 1, [10] * clients, active)
    return [(table[t].time, table.starting(t), [list(pair) for pair in table[t].arrived]) for t in range(count)]


def test_synchronous_rounds_wait_for_the_slowest() -> None:
    assert steps(Sync(speeds=TURNS), 2) == [
        (5.0, [0, 1, 2], [[0, 0], [1, 0], [2, 0]]),
        (10.0, [0, 1, 2], [[0, 0], [1, 0], [2, 0]]),
    ]


def test_with_a_buffer_of_one_every_reply_is_a_step() -> None:
    """Turns of 1, 2 and 5 from time 0 arrive at 1, 2 and 5. The first client starts again after each of its steps: at
    1, 2, 3, 4. At 2 it arrives together with the second client, which is heard after it and before anybody starts: it
    started before step 0, is used in step 2, and so is two steps late. The third is heard in step 7, at 5.
    """
    assert steps(Async(buffer=1, speeds=TURNS), 8) == [
        (1.0, [0, 1, 2], [[0, 0]]),
        (2.0, [0], [[0, 0]]),
        (2.0, [], [[1, 2]]),
        (3.0, [0, 1], [[0, 0]]),
        (4.0, [0], [[0, 0]]),
        (4.0, [], [[1, 2]]),
        (5.0, [0, 1], [[0, 0]]),
        (5.0, [], [[2, 7]]),
    ]


def test_a_client_in_the_buffer_starts_again_after_the_step() -> None:
    """Buffer of two: clients 0 (at 1) and 1 (at 2) make the first step; both start again and arrive at 3 and 4."""
    assert steps(Async(buffer=2, speeds=TURNS), 2) == [
        (2.0, [0, 1, 2], [[0, 0], [1, 0]]),
        (4.0, [0, 1], [[0, 0], [1, 0]]),
    ]


def test_an_idle_client_takes_the_place_of_one_in_the_buffer() -> None:
    """Two of three train at the same time: when the first is heard the third starts, from the same model."""
    table = Timetable(Async(buffer=2, speeds=Equal()), 1, [10] * 3, 2)
    assert table[0].arrived == tuple((k, 0) for k in draw_clients(1, 0, 3, 2))
    uneven = Timetable(Async(buffer=2, speeds=Given(turns=(1.0, 3.0, 1.5))), 1, [10] * 3, 2)
    first = draw_clients(1, 0, 3, 2)
    (idle,) = {0, 1, 2} - set(first)
    assert uneven.starting(0) == [0, 1, 2]
    assert uneven[0].started[2][0] == idle


def test_equal_speeds_and_a_buffer_for_all_make_synchronous_rounds() -> None:
    plan = experiment({"data": "digits", "clients": 7, "active": 3, "seed": 5, "rounds": 20})
    table = Timetable(Async(buffer=3, speeds=Equal()), 5, [10] * 7, 3)
    assert [table.starting(t) for t in range(20)] == [plan.active_in(t) for t in range(20)]
    assert [table.arriving(t) for t in range(20)] == [plan.active_in(t) for t in range(20)]
    assert table[19].time == 20.0


def test_recorded_steps_are_replayed_and_the_next_ones_follow_from_them() -> None:
    pace = Async(buffer=2, speeds=LogNormal(sigma=1.0, jitter=0.3))
    whole = Timetable(pace, 3, [10] * 9, 5)
    written = [whole[t].plain() for t in range(12)]
    rows = [{"pace": step} for step in written]
    resumed = Timetable(pace, 3, [10] * 9, 5, rows[:7])
    assert [resumed[t].plain() for t in range(12)] == written
    other = Timetable(Async(buffer=2, speeds=Equal()), 3, [10] * 9, 5, rows[:7])
    assert [other[t].plain() for t in range(7)] == written[:7]  # as they were, whatever the speeds are now
    assert in_flight(rows) == sorted(client for _, client, _ in whole.flying)


def test_nobody_is_in_one_step_twice_or_at_two_turns_at_once() -> None:
    table = Timetable(Async(buffer=4, speeds=LogNormal(sigma=2.0, jitter=1.0)), 2, [10] * 8, 5)
    flying: set[int] = set()
    for t in range(60):
        started, arrived = table.starting(t), table.arriving(t)
        assert len(set(arrived)) == len(arrived) == 4
        assert not flying & set(started)
        flying |= set(started)
        assert set(arrived) <= flying
        flying -= set(arrived)
        assert len(flying) <= 5
        assert t == 0 or table[t].time >= table[t - 1].time


def test_turns_by_samples_take_their_time() -> None:
    """Sizes 1 and 3, mean 2: turns of ½ and 3/2."""
    table = Timetable(Sync(speeds=Equal(by_samples=True)), 1, [1, 3], 2)
    assert table[0].started == ((0, 0.5), (1, 1.5))


def test_speeds_are_a_clients_own_and_their_median_is_one() -> None:
    speeds = LogNormal(sigma=1.0)
    turns = [speeds.turn(1, k, 0) for k in range(2000)]
    assert turns[:50] == [speeds.turn(1, k, 7) for k in range(50)]
    below = sum(turn < 1 for turn in turns) / len(turns)
    slow = sum(turn > 2.718281828 for turn in turns) / len(turns)
    assert 0.46 < below < 0.54
    assert 0.13 < slow < 0.19  # beyond one standard deviation: 16 per cent
    assert LogNormal(sigma=0.0).turn(1, 3, 0) == 1.0


@pytest.mark.parametrize("turns", [(), (1.0, 0.0), (float("inf"),)])
def test_given_turns_are_numbers_above_zero(turns: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match=r"turns = .*: must be a number > 0 for each client"):
        Given(turns=turns)
