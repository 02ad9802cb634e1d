"""Two ways are compared round by round, so that a busy moment meets both."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.lab.pairing import Effort, Spent, compare, interval, ratio


@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_way_is_run_as_often_in_every_round() -> None:
    calls = {"one": 0, "other": 0}

    def way(name: str) -> None:
        calls[name] += 1

    ways = {name: partial(way, name) for name in calls}
    rounds = compare(ways, Effort(seconds=0, rounds=4, repeat=3))
    assert [len(found) for found in rounds.values()] == [4, 4]
    assert calls == {"one": 12, "other": 12}


def test_a_ratio_is_that_of_the_same_round() -> None:
    busy, idle = Spent(cpu=4.0, wall=40.0), Spent(cpu=2.0, wall=20.0)
    half = [Spent(cpu=2.0, wall=10.0), Spent(cpu=1.0, wall=5.0)]
    rounds = {"way": half, "by hand": [busy, idle]}
    assert ratio(rounds, "way", "by hand", "cpu") == (0.5, 0.5, 0.5)
    assert ratio(rounds, "way", "by hand", "wall") == (0.25, 0.25, 0.25)


def test_an_interval_holds_the_median_and_not_the_outlier() -> None:
    found = interval([1.0, 1.1, 1.2, 1.0, 1.1, 1.2, 1.1, 1.0, 9.0])
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value == 1.1 <= found.high < 9
