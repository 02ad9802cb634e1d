"""A line by itself, without any database: who is let in, in which order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sa_doclock import DocumentGate
from sa_doclock.features.gate import queues_of
from sa_doclock.features.gate.queue import QueueEntry
from tests.integration.gate.queueing import Walkers, enter
from tests.support.waits import wait_until


@pytest.fixture
def walkers(gate: DocumentGate) -> Iterator[Walkers]:
    walkers = Walkers(gate)
    yield walkers
    walkers.go_home()


@pytest.fixture
def ahead() -> Iterator[Walkers]:
    """Make walkers of whom the next goes on to the server, as by default."""
    walkers = Walkers(DocumentGate())
    yield walkers
    walkers.go_home()


def test_writers_go_in_one_by_one_as_they_came(walkers: Walkers) -> None:
    for name in "abcd":
        walkers.send(name)
    assert walkers.are_in("a")
    walkers.grant("a")
    assert walkers.are_in("a")
    for left, others in (("a", "ab"), ("b", "abc"), ("c", "abcd")):
        walkers.leave(left)
        assert walkers.are_in(*others)


def test_readers_go_in_together_when_one_has_been_granted(walkers: Walkers) -> None:
    for name in "abc":
        walkers.send(name, shared=True)
    assert walkers.are_in("a")  # who may have to wait at the server, for another process
    walkers.grant("a")
    wait_until(lambda: sorted(walkers.came_in) == list("abc"))
    assert walkers.gate.waiting == 0


def test_a_reader_does_not_overtake_a_writer(walkers: Walkers) -> None:
    walkers.send("reader", shared=True)
    walkers.grant("reader")
    walkers.send("writer")
    walkers.send("late reader", shared=True)
    assert walkers.are_in("reader")
    walkers.leave("reader")
    assert walkers.are_in("reader", "writer")
    walkers.grant("writer")
    assert walkers.gate.waiting == 1
    walkers.leave("writer")
    assert walkers.are_in("reader", "writer", "late reader")


def test_the_next_goes_to_the_server_when_the_one_before_is_granted(ahead: Walkers) -> None:
    for name in "abcd":
        ahead.send(name)
    assert ahead.are_in("a")
    ahead.grant("a")
    assert ahead.are_in("a", "b")
    assert ahead.gate.waiting == 2
    ahead.leave("a")
    assert ahead.gate.waiting == 2  # b has not been granted it yet
    ahead.grant("b")
    assert ahead.are_in("a", "b", "c")


def test_who_fails_at_the_server_lets_the_next_come(ahead: Walkers) -> None:
    for name in "abc":
        ahead.send(name)
    ahead.grant("a")
    assert ahead.are_in("a", "b")
    ahead.leave("b")
    assert ahead.are_in("a", "b", "c")


def test_who_gives_up_is_out_of_the_line(walkers: Walkers) -> None:
    walkers.send("a")
    walkers.send("b", seconds=0.05)
    assert walkers.are_in("a", "not b")
    walkers.send("c")
    walkers.leave("a")
    assert walkers.are_in("a", "not b", "c")


def test_other_documents_have_lines_of_their_own(walkers: Walkers) -> None:
    walkers.send("a")
    place = QueueEntry("another", shared=False, next_may_follow=False)
    assert enter(walkers.gate, place, seconds=0, under_asyncio=False)
    queues_of(walkers.gate).leave([place])


def test_a_place_is_given_up_once(walkers: Walkers) -> None:
    for name in "abc":
        walkers.send(name)
    place = walkers.places["a"]
    walkers.leave("a")
    assert walkers.are_in("a", "b")
    queues_of(walkers.gate).leave([place])
    queues_of(walkers.gate).note_granted([place])
    assert walkers.gate.waiting == 1
    assert walkers.are_in("a", "b")


def test_it_tells_of_itself(walkers: Walkers) -> None:
    assert repr(walkers.gate) == "<DocumentGate: 0 waiting, 0 documents>"
    for name in "ab":
        walkers.send(name)
    assert repr(walkers.gate) == "<DocumentGate: 1 waiting, 1 documents>"
