"""The checker finds each anomaly by its own name, and nothing in the right twin."""

from __future__ import annotations

import pytest

from tests.reliability.history.anomalies import Name
from tests.reliability.history.checker import check
from tests.reliability.history.notation import history_of
from tests.reliability.history.wrong import TWINS

each = pytest.mark.parametrize("name", Name, ids=[name.value for name in Name])


def _names(text: str) -> set[Name]:
    return {found.name for found in check(history_of(text))}


def test_there_is_a_wrong_history_for_every_name() -> None:
    assert TWINS.keys() == set(Name)


@each
def test_a_wrong_history_is_found_by_its_own_name(name: Name) -> None:
    assert _names(TWINS[name].wrong) == {name} | TWINS[name].also


@each
def test_its_right_twin_passes(name: Name) -> None:
    assert check(history_of(TWINS[name].right)) == []


def test_the_report_names_the_transactions_and_the_item() -> None:
    (found,) = check(history_of(TWINS[Name.P4].wrong))
    assert str(found) == "P4 lost update: T1 and T2 have both replaced the first of 2"
    (found,) = check(history_of(TWINS[Name.G2_ITEM].wrong))
    assert str(found) == "G2-item write skew (A5B): T1 -rw-> T2 -rw-> T1"


@pytest.mark.parametrize(
    ("text", "link", "name"),
    [
        ("w1(x1) r2(x1) w2(y2) r3(y2) w3(h3) r1(h3) c1 c2 c3", "r1(h3)", Name.G1C),
        ("w1(x1) w1(h1/h0) r2(x1) w2(y2) r3(y2) r3(h0) c1 c2 c3", "r3(h0)", Name.G_SINGLE),
        ("r1(x0) w2(x2/x0) r2(y0) w3(y3/y0) r3(h0) w1(h1/h0) c1 c2 c3", "r3(h0)", Name.G2_ITEM),
    ],
    ids=["G1c", "G-single", "G2-item"],
)
def test_a_cycle_of_three_is_found_and_goes_with_any_link(text: str, link: str, name: Name) -> None:
    assert _names(text) - {Name.P1} == {name}
    assert _names(text.replace(link, "")) == set()


def test_what_was_rolled_back_does_not_count() -> None:
    assert _names("r1(x0) r2(x0) w1(x1) a1 w2(x2) c2") == set()
    assert _names("r1(x0) w1(x1) c1 r2(x0) a2") == set()


def test_a_read_that_is_older_than_what_it_saw_elsewhere_is_fractured_at_any_distance() -> None:
    two = "r1(h0) r1(d0) w1(h1) w1(d1) c1 r2(h1) r2(d1) w2(h2) w2(d2) c2 "
    assert Name.FRACTURED in _names("r3(d0) " + two + "r3(h2) c3")
    assert _names("r3(d0) " + two + "r3(h0) c3") == set()
    assert _names("r3(d0) r1(h0) w1(h1) c1 r3(h1) c3") == set()  # 1 wrote no detail


def test_a_transaction_does_not_see_what_it_has_yet_to_write() -> None:
    assert _names("r1(x1) w1(x1) c1") == {Name.INTERNAL}


def test_what_nobody_wrote_cannot_be_replaced() -> None:
    assert _names("w2(x2/x7) c2") == _names("w1(y1) c1 w2(x2/x1) c2") == {Name.GARBAGE_READ}
