"""The checker finds each anomaly by its name, and none in the correct twin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from tests.reliability.history.checker import check, graph_of
from tests.reliability.history.items import Name
from tests.reliability.history.record import (
    ABSENT,
    FIRST,
    History,
    Item,
    Outcome,
    Read,
    Transaction,
    Version,
    Write,
)
from tests.reliability.history.test_properties import (
    Corrupted,
    Plan,
    carried_out,
    first_state,
    plans,
    with_a_base_twice,
    with_a_write_dropped,
    with_another_read,
)

# --------------------------------------------------------------------------------------------------
# Histories in the notation of the literature: one string.
#
# ``r1(x0)`` transaction 1 reads the first version, ``w1(x1)`` it writes x, ``w1(x1.2)`` for the
# second time, over what it read or wrote of x before; ``w2(x2/x1)`` names the version it replaces.
# ``r1(d-)`` it reads that d is missing, and ``w1(d1)`` after that inserts it; ``x1(d1)`` deletes it.
# ``c1`` commits, ``a1`` aborts, ``u1`` is unknown.  The first operation begins the transaction.
# After ``|`` is the final state.  ``h`` is the header of document 1, ``d`` and ``e`` are its details;
# ``x`` and ``y`` are headers of other documents.

_ITEMS = {"h": Item(1), "d": Item(1, "d"), "e": Item(1, "e"), "x": Item(2), "y": Item(3)}
_ENDS = {"c": Outcome.COMMITTED, "a": Outcome.ABORTED, "u": Outcome.UNKNOWN}
_VERSION = r"(\d+(?:\.\d)?|-)"
_STEP = re.compile(rf"([rwxcau])(\d+)(?:\((\w){_VERSION}(?:/\w{_VERSION})?\))?")


def history_of(text: str) -> History:
    steps, bar, left = text.partition("|")
    transactions: dict[int, Transaction] = {}
    current: dict[tuple[int, str], Version] = {}
    for tick, (what, number, letter, name, over) in enumerate(_STEP.findall(steps), start=1):
        one = transactions.setdefault(int(number), Transaction(int(number), tick, tick))
        one.ended = tick
        if what in _ENDS:
            one.outcome, one.committing = _ENDS[what], tick
            continue
        item, version = _ITEMS[letter], _version(name)
        if what == "r":
            one.operations.append(Read(item, version))
        else:
            replaced = _version(over) if over else current.get((one.number, letter))
            one.operations.append(Write(item, version, replaced, gone=what == "x"))
        current[one.number, letter] = version
    final = {_ITEMS[place[0]]: _version(place[1:]) for place in left.split()}
    return History(transactions.values(), final if bar else None)


def _version(name: str) -> Version:
    if name == "-":
        return ABSENT
    writer, _, nth = name.partition(".")
    return Version(int(writer), int(nth or 1)) if int(writer) else FIRST


# --------------------------------------------------------------------------------------------------
# Histories that are wrong on purpose, one per anomaly, each with a correct twin.


class Twins(NamedTuple):
    """Two histories in the notation of ``tests/reliability/history/test_checker.py``."""

    wrong: str
    right: str
    also: frozenset[Name] = frozenset()  # other anomalies in the wrong history


def _also(*names: Name) -> frozenset[Name]:
    return frozenset(names)


TWINS = {
    Name.GARBAGE_READ: Twins("w1(x1) c1 r2(x7) c2", "w1(x1) c1 r2(x1) c2"),
    Name.INTERNAL: Twins("r1(x0) w1(x1) r1(x0) c1", "r1(x0) w1(x1) r1(x1) c1"),
    Name.P0: Twins(
        "r1(x0) w1(x1) w2(x2/x1) c2 c1",
        "r1(x0) w1(x1) c1 w2(x2/x1) c2",
    ),
    Name.P1: Twins("r1(x0) w1(x1) r2(x1) c2 c1", "r1(x0) w1(x1) r2(x0) c2 c1"),
    Name.G1A: Twins("r1(x0) w1(x1) r2(x1) a1 c2", "r1(x0) w1(x1) r2(x0) a1 c2"),
    Name.G1B: Twins("w1(x1) r2(x1) w1(x1.2) c1 c2", "w1(x1) w1(x1.2) c1 r2(x1.2) c2"),
    Name.P2: Twins(
        "r2(x0) r1(x0) w1(x1) c1 r2(x1) c2",
        "r2(x0) r1(x0) w1(x1) c1 r2(x0) c2",
    ),
    Name.P3: Twins(
        "r2(d-) r1(d-) w1(d1) c1 r2(d1) c2",
        "r2(d-) r1(d-) w1(d1) c1 r2(d-) c2",
    ),
    Name.DOCUMENT: Twins(
        "r2(h0) r2(d0) r1(h0) r1(d0) w1(h1) w1(d1) c1 r2(h1) r2(d1) c2",
        "r2(h0) r2(d0) r1(h0) r1(d0) w1(h1) w1(d1) c1 r2(h0) r2(d0) c2",
        _also(Name.P2),
    ),
    Name.FRACTURED: Twins(
        "r2(h0) r1(h0) r1(d0) w1(h1) w1(d1) c1 r2(d1) c2",
        "r2(h0) r1(h0) r1(d0) w1(h1) w1(d1) c1 r2(d0) c2",
        _also(Name.G_SINGLE),
    ),
    Name.P4: Twins(
        "r1(x0) r2(x0) w1(x1) c1 w2(x2) c2",
        "r1(x0) w1(x1) c1 r2(x1) w2(x2) c2",
    ),
    Name.LOST_WRITE: Twins(
        "r1(x0) w1(x1) c1 | x0",
        "r1(x0) w1(x1) c1 | x1",
    ),
    Name.G0: Twins(
        "w1(x1) w2(x2/x1) w2(y2) w1(y1/y2) c1 c2",
        "w1(x1) w1(y1) c1 w2(x2/x1) w2(y2/y1) c2",
        _also(Name.P0),
    ),
    Name.G1C: Twins(
        "w1(x1) w2(y2) r1(y2) r2(x1) c1 c2",
        "w1(x1) r1(y0) w2(y2) c1 r2(x1) c2",
        _also(Name.P1),
    ),
    Name.G_SINGLE: Twins(
        "r2(x0) r1(x0) r1(y0) w1(x1) w1(y1) c1 r2(y1) c2",
        "r2(x0) r1(x0) r1(y0) w1(x1) w1(y1) c1 r2(y0) c2",
    ),
    Name.G2_ITEM: Twins(
        "r1(x0) r1(y0) r2(x0) r2(y0) w1(x1) w2(y2) c1 c2",
        "r1(x0) r1(y0) w1(x1) c1 r2(x1) r2(y0) w2(y2) c2",
    ),
    Name.G2: Twins(
        "r1(d-) r1(e-) r2(d-) r2(e-) w1(d1) w2(e2) c1 c2",
        "r1(d-) r1(e-) w1(d1) c1 r2(d1) r2(e-) w2(e2) c2",
    ),
    Name.G1C_REALTIME: Twins(
        "r1(x2) c1 w2(x2) c2",
        "w2(x2) c2 r1(x2) c1",
        _also(Name.P1),
    ),
    Name.G_SINGLE_REALTIME: Twins(
        "r1(x0) w1(x1) c1 r2(x0) c2",
        "r1(x0) r2(x0) w1(x1) c1 c2",
    ),
    Name.G2_REALTIME: Twins(
        # 2 stays open: it must follow 1 and precede 3, which ended before 1
        "r2(x0) r2(y0) r3(y0) w3(y3) c3 r1(x0) c1 w2(x2) c2",
        "r2(x0) r2(y0) r3(y0) w3(y3) r1(x0) c3 c1 w2(x2) c2",
    ),
}

_DELETED_TWICE = (
    "r1(h0) r1(d0) w1(h1) x1(d1) c1 r2(h1) r2(d-) w2(h2) w2(d2) c2 r3(h2) r3(d2) w3(h3) x3(d3) c3"
)
DOCUMENTS = {
    "a detail appears between two reads": (
        Name.P3,
        "r2(h0) r2(d-) r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(h0) r2(d1) c2",
        "r2(h0) r2(d-) r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(h0) r2(d-) c2",
    ),
    "a detail disappears between two reads": (
        Name.P3,
        "r2(d0) r1(d0) x1(d1) c1 r2(d-) c2",
        "r2(d0) r1(d0) x1(d1) c1 r2(d0) c2",
    ),
    "a total that counts a detail which is not seen": (
        Name.FRACTURED,
        "r1(h0) r1(d-) w1(h1) w1(d1) r2(d-) c1 r2(h1) c2",
        "r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(d1) r2(h1) c2",
    ),
    "a detail that the total does not count": (
        Name.FRACTURED,
        "r2(h0) r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(d1) c2",
        "r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(h1) r2(d1) c2",
    ),
    "a total without a detail that is still there": (
        Name.FRACTURED,
        "r2(d0) r1(h0) r1(d0) w1(h1) x1(d1) c1 r2(h1) c2",
        "r1(h0) r1(d0) w1(h1) x1(d1) c1 r2(d-) r2(h1) c2",
    ),
    "a resurrected detail": (  # 2 writes a detail that 1 deleted, and it exists again
        Name.P4,
        "r1(d0) r2(d0) x1(d1) c1 w2(d2) c2 r3(d2) c3",
        "r1(d0) x1(d1) c1 r2(d-) w2(d2) c2 r3(d2) c3",
    ),
    "a resurrected detail, seen": (
        Name.G_SINGLE_REALTIME,
        "r1(d0) x1(d1) c1 r2(d-) c2 r3(d0) c3",
        "r1(d0) x1(d1) c1 r2(d-) c2 r3(d-) c3",
    ),
    "the same detail inserted twice": (
        Name.P4,
        "r1(d-) r2(d-) w1(d1) c1 w2(d2) c2",
        "r1(d-) w1(d1) c1 r2(d1) w2(d2) c2",
    ),
    "a lost insert": (
        Name.LOST_WRITE,
        "r1(h0) r1(d-) w1(h1) w1(d1) c1 | h1",
        "r1(h0) r1(d-) w1(h1) w1(d1) c1 | h1 d1",
    ),
    "a lost delete": (
        Name.LOST_WRITE,
        "r1(h0) r1(d0) w1(h1) x1(d1) c1 | h1 d0",
        "r1(h0) r1(d0) w1(h1) x1(d1) c1 | h1",
    ),
    "a detail that nobody has deleted": (
        Name.GARBAGE_READ,
        "r1(d0) c1 r2(d-) c2",
        "r1(d0) x1(d1) c1 r2(d-) c2",
    ),
    "a delete that was rolled back": (
        Name.G1A,
        "r1(d0) x1(d1) r2(d-) a1 c2",
        "r1(d0) x1(d1) a1 r2(d0) c2",
    ),
    "an insert that was rolled back": (
        Name.G1A,
        "r1(d-) w1(d1) r2(d1) a1 c2",
        "r1(d-) w1(d1) r2(d-) a1 c2",
    ),
    "a detail that its writer then deleted": (
        Name.G1B,
        "r1(d-) w1(d1) r2(d1) x1(d1.2) c1 c2",
        "r1(d-) w1(d1) x1(d1.2) c1 r2(d-) c2",
    ),
    "write skew between header and details": (  # one computes the total again, the other changes a detail
        Name.G2_ITEM,
        "r1(h0) r1(d0) r2(h0) r2(d0) w1(h1) w2(d2) c1 c2",
        "r1(h0) r1(d0) w1(h1) c1 r2(h1) r2(d0) w2(d2) c2",
    ),
    "write skew between header and a new detail": (
        Name.G2,
        "r1(h0) r1(d-) r2(h0) r2(d-) w1(h1) w2(d2) c1 c2",
        "r1(h0) r1(d-) w1(h1) c1 r2(h1) r2(d-) w2(d2) c2",
    ),
    "read skew between header and details": (
        Name.G_SINGLE,  # 3 did not write the version that 2 reads, but followed 1
        "r2(d-) r1(h0) r1(d-) w1(h1) w1(d1) c1 r3(h1) w3(h3) c3 r2(h3) c2",
        "r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(d1) r3(h1) w3(h3) c3 r2(h3) c2",
    ),
    "the second of two deletions is not seen": (
        Name.G_SINGLE_REALTIME,
        f"{_DELETED_TWICE} r4(h1) r4(d-) c4",
        f"{_DELETED_TWICE} r4(h3) r4(d-) c4",
    ),
}
"""Wrong histories of a document whose details come and go: the name, wrong, right."""


# --------------------------------------------------------------------------------------------------
# The checker finds each anomaly by name, and nothing in the correct twin.

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


# --------------------------------------------------------------------------------------------------
# Details that are inserted and deleted: the checker also names errors in their document.

each_documents = pytest.mark.parametrize("case", DOCUMENTS)


@each_documents
def test_a_wrong_document_is_found_by_its_name(case: str) -> None:
    name, wrong, _ = DOCUMENTS[case]
    assert name in _names(wrong)


@each_documents
def test_its_right_twin_passes_documents(case: str) -> None:
    *_, right = DOCUMENTS[case]
    assert list(map(str, check(history_of(right)))) == []


def test_what_was_there_at_first_is_not_inserted() -> None:
    found = check(history_of("r1(d0) w1(d1/d-) c1"))
    assert [one.name for one in found] == [Name.GARBAGE_READ]


# --------------------------------------------------------------------------------------------------
# The checker accepts every correct history, and finds each injected error.

OVERLAP = 35  # ticks: up to eight are open at the same time


def _always(examples: int) -> settings:
    return settings(
        derandomize=True,
        deadline=None,
        database=None,
        max_examples=examples,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow
@_always(150)
@given(planned=plans(OVERLAP, headers=False), final=st.booleans())
def test_a_serial_history_has_no_anomaly(planned: list[Plan], final: bool) -> None:
    done, left = carried_out(planned, first_state())
    assert list(map(str, check(History(done, left if final else None)))) == []


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("corrupt", [with_another_read, with_a_write_dropped, with_a_base_twice])
@_always(100)
@given(planned=plans(0, headers=True), data=st.data())
def test_what_is_made_wrong_is_found(
    corrupt: Callable[[Sequence[Transaction]], Iterator[Corrupted]],
    planned: list[Plan],
    data: st.DataObject,
) -> None:
    done, left = carried_out(planned, first_state())
    wrong = list(corrupt(done))
    assume(wrong)
    what, history = data.draw(st.sampled_from(wrong))
    note(what)
    assert check(History(history, left)) != []


def test_the_graph_grows_with_the_number_of_transactions_alone() -> None:
    plan = Plan((1,), (), True, False, Outcome.COMMITTED, True, OVERLAP, OVERLAP)
    edges = [
        graph_of(History(carried_out([plan] * many, first_state())[0])).number_of_edges()
        for many in (200, 400)
    ]
    assert edges[1] <= 2 * edges[0] + 10


# --------------------------------------------------------------------------------------------------
# A commit of unknown outcome counts once anyone sees its work, and then as a whole.

TWO = "r1(h0) r1(d0) w1(h1) w1(d1) u1 "
INSERT = "r1(h0) r1(d-) w1(h1) w1(d1) u1 "
DELETE = "r1(h0) r1(d0) w1(h1) x1(d1) u1 "


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
    """3 was not committed: 1 deleted the detail that 4 misses."""
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
