"""A commit of which nobody knows counts as soon as anybody shows its work, and then as a whole."""

from __future__ import annotations

import pytest

from tests.reliability.history.anomalies import Name
from tests.reliability.history.checker import check
from tests.reliability.history.notation import history_of

TWO = "r1(h0) r1(d0) w1(h1) w1(d1) u1 "
INSERT = "r1(h0) r1(d-) w1(h1) w1(d1) u1 "
DELETE = "r1(h0) r1(d0) w1(h1) x1(d1) u1 "


def _names(text: str) -> set[Name]:
    return {found.name for found in check(history_of(text))}


def test_it_counts_once_it_was_read() -> None:
    assert _names("r1(x0) r2(x0) w1(x1) u1 w2(x2) c2") == set()
    assert _names("r1(x0) r2(x0) w1(x1) u1 w2(x2) c2 r3(x1) c3") == {Name.P4}
    assert _names("r1(x0) w1(x1) u1 r2(x1) c2") == set()


def test_it_counts_once_it_was_replaced() -> None:
    assert _names(TWO + "r2(d0) w3(h3/h1) c3") == set()  # 2 is open, and before 1
    assert _names(TWO + "r2(d0) c2 w3(h3/h1) c3 r4(h3) r4(d0) c4") == {
        Name.G_SINGLE,
    }


@pytest.mark.parametrize("work", [TWO, INSERT, DELETE], ids=["two", "insert", "delete"])
def test_the_final_state_shows_the_whole_or_nothing(work: str) -> None:
    before = "h0" if work is INSERT else "h0 d0"
    after = "h1" if work is DELETE else "h1 d1"
    assert _names(f"{work}| {before}") == set()
    assert _names(f"{work}| {after}") == set()
    for torn in (f"{before[:2]} {after[3:]}", f"{after[:2]} {before[3:]}"):
        assert Name.LOST_WRITE in _names(f"{work}| {torn}")


def test_one_that_was_committed_must_be_in_the_final_state() -> None:
    for work in (TWO, INSERT, DELETE):
        before = "h0" if work is INSERT else "h0 d0"
        assert _names(work.replace("u1", "c1") + f"| {before}") == {Name.LOST_WRITE}


def test_its_end_is_not_known_either() -> None:
    assert _names("r1(x0) w1(x1) u1 r2(x0) c2 r3(x1) c3") == set()  # committed after 2
    assert _names("r1(x0) w1(x1) c1 r2(x0) c2 r3(x1) c3") == {Name.G_SINGLE_REALTIME}
    assert _names("r1(x0) w1(x1) u1 r3(x1) c3 r2(x0) c2") == {Name.G_SINGLE_REALTIME}


def test_a_deletion_of_which_nobody_knows_does_not_hide_an_older_one() -> None:
    """3 has not come through: what 4 does not see was deleted by 1."""
    text = (
        "r1(h0) r1(d0) w1(h1) x1(d1) c1 r3(h1) r3(d-) w3(h3) w3(d3) x3(d3.2) u3 "
        "r4(h1) r4(d-) w4(h4) c4 r5(h4) r5(d-) c5 | h4"
    )
    history = history_of(text)
    assert check(history) == []
    assert 3 not in history.installed


def test_what_is_in_the_final_state_was_written_by_somebody() -> None:
    assert _names("w1(x1) c1 | x1 y7") == {Name.GARBAGE_READ}
    assert _names("w1(x1) a1 | x1") == {Name.G1A}


def test_a_blind_write_may_have_come_before_another() -> None:
    assert _names("w1(x1) w2(x2) c1 c2 | x1") == set()
    assert _names("w1(x1) w2(x2) c1 c2 | x0") == {Name.LOST_WRITE}


def test_a_deletion_without_a_header_may_have_come_through() -> None:
    insert = "r1(d-) w1(d1) c1 r2(d1) "
    assert _names(insert + "x2(d2) u2 |") == set()
    assert _names(insert + "x2(d2) a2 |") == {Name.LOST_WRITE}
