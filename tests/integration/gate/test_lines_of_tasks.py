"""One gate for threads and for tasks of any loop, and what a fork leaves of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from sqlalchemy.util import greenlet_spawn

from sa_doclock import DocumentGate
from sa_doclock.features.gate import queues_of
from sa_doclock.features.gate.queue import QueueEntry
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.gate.queueing import enter, until_queued
from tests.support.actors import PATIENCE
from tests.support.waits import wait_until


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
from sa_doclock import DocumentGate
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
