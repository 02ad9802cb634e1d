"""The checker finds each kind of history that no order of commits explains."""

from __future__ import annotations

import pytest

from tests.reliability.combined.answers import Answer, wrong

GOOD = (
    Answer(process=1, key=11, arrival=0, invoked=1.0, answered=4.0, number=31),
    Answer(process=2, key=21, arrival=0, invoked=1.0, answered=3.0, number=32),
    Answer(process=1, key=12, arrival=1, invoked=2.0, answered=4.5, number=33),
    Answer(process=2, key=22, arrival=1, invoked=5.0, answered=6.0, number=34),
)
STORED = {one.key: one.number for one in GOOD}
COUNTED = range(31, 35)


def test_what_is_in_order() -> None:
    assert not [*wrong(GOOD, STORED, COUNTED)]
    # Nobody was notified of one that is saved: its process was killed.
    assert not [*wrong(GOOD[1:], STORED, COUNTED)]


@pytest.mark.parametrize(
    ("index", "changed", "text"),
    [
        (3, {"number": 33}, "33 was given 2 times"),
        (3, {"key": 23}, "34 was answered, and None is saved"),
        (0, {"invoked": 3.5}, "31 was called after a greater number was answered"),
        (2, {"arrival": -1}, "process 1, in order of arrival: 31 after 33"),
    ],
)
def test_what_is_not(index: int, changed: dict[str, int], text: str) -> None:
    answers = [*GOOD]
    answers[index] = answers[index]._replace(**changed)
    assert text in [*wrong(answers, STORED, COUNTED)]


@pytest.mark.parametrize(
    "stored", [{**STORED, 23: 34}, {**STORED, 23: 36}, {11: 31, 21: 32, 12: 33}]
)
def test_what_is_saved_is_what_was_counted(stored: dict[int, int]) -> None:
    assert any("the counter has given" in one for one in wrong(GOOD[:3], stored, COUNTED))
