"""A line without any database: who is admitted, and in which order."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from threading import Thread
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.util import greenlet_spawn

from sa_doclock import DocumentGate, LockingSession
from sa_doclock.features.gate import queues_of
from sa_doclock.features.gate.queue import QueueEntry
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.gate.queueing import enter, until_queued
from tests.support.actors import PATIENCE
from tests.support.models import Order
from tests.support.waits import wait_until


class Walkers:
    """Threads that enter a line; records the order of admission."""

    def __init__(self, gate: DocumentGate) -> None:
        self.gate = gate
        self.came_in: list[str] = []
        self.places: dict[str, QueueEntry] = {}
        self._threads = ThreadPoolExecutor(32)
        self._coming: list[Future[None]] = []

    def send(self, name: str, *, shared: bool = False, seconds: float | None = None) -> None:
        """Start one, and return when it is inside or stands in line."""
        before = self.gate.waiting
        came = self._threads.submit(self._come, name, shared, seconds)
        self._coming.append(came)
        wait_until(lambda: came.done() or self.gate.waiting > before)
        if came.done():
            came.result()

    def _come(self, name: str, shared: bool, seconds: float | None) -> None:
        place = QueueEntry("it", shared, self.gate.next_waits_at_server)
        if enter(self.gate, place, seconds=seconds, under_asyncio=False):
            self.places[name] = place
            self.came_in.append(name)
        else:
            queues_of(self.gate).leave([place])
            self.came_in.append(f"not {name}")

    def grant(self, *names: str) -> None:
        queues_of(self.gate).note_granted([self.places[name] for name in names])

    def leave(self, *names: str) -> None:
        queues_of(self.gate).leave([self.places.pop(name) for name in names])

    def are_in(self, *names: str) -> bool:
        """Return whether exactly these were admitted, in this order."""
        wait_until(lambda: len(self.came_in) >= len(names))
        return self.came_in == list(names)

    def go_home(self) -> None:
        """Let everyone who still waits pass."""
        for came in self._coming:
            while not came.done():
                self.leave(*tuple(self.places))
        self.leave(*tuple(self.places))
        self._threads.shutdown()
        assert not queues_of(self.gate).documents


@pytest.fixture
def walkers(gate: DocumentGate) -> Iterator[Walkers]:
    walkers = Walkers(gate)
    yield walkers
    walkers.go_home()


@pytest.fixture
def ahead() -> Iterator[Walkers]:
    """Make walkers whose next in line goes on to the server, as by default."""
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
    assert walkers.are_in("a")  # it may have to wait at the server for another process
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
    assert ahead.gate.waiting == 2  # b does not have it yet
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


# --------------------------------------------------------------------------------------------------
# Threads and the tasks of all event loops share one gate; a forked process has its own queues.


def enters(gate: DocumentGate, *, under_asyncio: bool = False) -> QueueEntry:
    place = QueueEntry(1, shared=False, next_may_follow=False)
    assert enter(gate, place, seconds=None, under_asyncio=under_asyncio)
    return place


@in_a_loop
async def test_threads_and_tasks_stand_in_one_line(gate: DocumentGate) -> None:
    came: list[str] = []

    def go_through(name: str, *, under_asyncio: bool) -> None:
        place = enters(gate, under_asyncio=under_asyncio)
        came.append(name)
        queues_of(gate).leave([place])

    async def come_later(*names: str) -> None:
        for number, name in enumerate(names):
            if name.startswith("task"):
                spawned = greenlet_spawn(go_through, name, under_asyncio=True)
                waiting.append(asyncio.ensure_future(spawned))
            else:
                ran = asyncio.to_thread(go_through, name, under_asyncio=False)
                waiting.append(asyncio.ensure_future(ran))
            await until_queued(gate, number + 1)

    waiting: list[asyncio.Future[None]] = []
    first = enters(gate)
    names = ("task 1", "thread 1", "thread 2", "task 2")
    await come_later(*names)
    queues_of(gate).leave([first])
    await asyncio.gather(*waiting)
    assert came == list(names)
    assert queues_of(gate).documents == {}


def test_a_task_is_woken_from_another_loop(gate: DocumentGate) -> None:
    first = enters(gate)
    came = threading.Event()

    async def wait_here() -> None:
        queues_of(gate).leave([await greenlet_spawn(enters, gate, under_asyncio=True)])
        came.set()

    thread = threading.Thread(target=lambda: asyncio.run(wait_here()))
    thread.start()
    wait_until(lambda: gate.waiting == 1)

    async def leave() -> None:
        queues_of(gate).leave([first])

    asyncio.run(leave())
    assert came.wait(PATIENCE)
    thread.join()
    assert queues_of(gate).documents == {}


def test_who_waits_in_a_loop_that_was_closed_is_passed_over(gate: DocumentGate) -> None:
    first = enters(gate)
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(greenlet_spawn(enters, gate, under_asyncio=True))
    loop.run_until_complete(until_queued(gate, 1))
    loop.close()
    behind = threading.Thread(target=lambda: queues_of(gate).leave([enters(gate)]))
    behind.start()
    wait_until(lambda: gate.waiting == 2)
    queues_of(gate).leave([first])
    behind.join(PATIENCE)
    assert not behind.is_alive()
    assert queues_of(gate).documents == {}
    abandoned._log_destroy_pending = False  # type: ignore[attr-defined]  # as it was meant


_IN_A_FORK = """
import os
from sa_doclock import DocumentGate, LockingSession
from sa_doclock.features.gate import queues_of
from sa_doclock.features.gate.queue import QueueEntry
from tests.integration.gate.queueing import enter

gate = DocumentGate()


def enters():
    place = QueueEntry(1, shared=False, next_may_follow=False)
    return enter(gate, place, seconds=0.0, under_asyncio=False)


assert enters()
assert not enters()
with queues_of(gate).mutex:  # another thread's
    child = os.fork()
    if not child:
        os._exit(0 if enters() and gate.waiting == 0 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert not enters()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="it has no fork")
def test_a_forked_process_has_lines_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", _IN_A_FORK], check=True, timeout=PATIENCE)


# --------------------------------------------------------------------------------------------------
# Garbage collection under a gate's mutex can close the sessions that a dead task left open.


class Factory:
    """A session factory that starts a garbage collection when the gate looks up its queue.

    Its first session says where the rows are; the gate has no use of another one.
    """

    collects = is_known = False

    def __call__(self) -> Any:
        if self.is_known:
            raise ConnectionRefusedError
        self.is_known = True
        return LockingSession(sa.create_engine("sqlite://"))

    def __hash__(self) -> int:
        if self.collects:
            gc.collect()
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Let only the test collect garbage."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Forgotten:
    """Leaves its queue when it is garbage-collected, like a session that was never closed."""

    def __init__(self, gate: DocumentGate) -> None:
        self.gate, self.entry = gate, QueueEntry("key", shared=False, next_may_follow=False)
        assert enter(gate, self.entry, seconds=0, under_asyncio=False)
        self.cycle = self

    def __del__(self) -> None:
        queues_of(self.gate).leave([self.entry])


@pytest.mark.usefixtures("no_collection")
def test_a_session_that_is_collected_under_the_mutex() -> None:
    gate, factory = DocumentGate(), Factory()
    Forgotten(gate)
    assert len(queues_of(gate).documents) == 1
    found: list[BaseException] = []

    def run() -> None:
        factory.collects = True
        try:
            gate.run(factory, Order, 2, lambda _session, order: order)
        except ConnectionRefusedError as error:
            found.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert found
    assert queues_of(gate).documents == {}


class CtrlCAtCall:
    """Raises KeyboardInterrupt at the start of one function, where Python checks for signals."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, _what: str, _arg: object) -> None:
        ours = ("sa_doclock.features.gate", "contextlib")
        # Python prints an exception from __del__() and continues; so it does with an interruption.
        if (
            frame.f_globals.get("__name__", "").startswith(ours)
            and frame.f_code.co_name != "__del__"
        ):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def test_an_error_of_an_interrupted_caller_does_not_keep_it() -> None:
    gate, factory, found = DocumentGate(), Factory(), list[type[BaseException]]()

    def run() -> type[BaseException]:
        with pytest.raises((ConnectionRefusedError, KeyboardInterrupt)) as raised:
            gate.run(factory, Order, 1, lambda _session, order: order)
        kept.append(raised.value)
        return raised.type

    kept: list[BaseException] = []  # with its traceback, and the traceback's frames
    for number in count(1):
        before = sys.gettrace()
        sys.settrace(CtrlCAtCall(number))
        try:
            interrupted = run() is KeyboardInterrupt
        finally:
            sys.settrace(before)
        thread = Thread(target=lambda: found.append(run()), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert found == [ConnectionRefusedError] * number
        if not interrupted:
            break
