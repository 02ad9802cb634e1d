"""One thread of a run: its steps one after the other, every failure counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError, Event
from time import perf_counter, sleep
from typing import Final

from sqlalchemy import Engine

from .... import DocLockError, LockingSession
from .model import LARGEST, Detail, Document, State
from .plan import Operation, Plan, Step
from .tally import Tally

ATTEMPTS = 4
"""The tries of an operation whose errors say that it may succeed."""


def _upsert(document: Document, step: Step) -> None:
    for detail in document.details:
        if detail.name == step.name:
            detail.value = step.value
            break
    else:
        document.details.append(Detail(name=step.name, value=step.value))
    document.add_up()


def _delete(document: Document, step: Step) -> None:
    for detail in document.details:
        if detail.name == step.name:
            document.details.remove(detail)
            break
    document.add_up()


def _move(document: Document, step: Step) -> None:
    """Move up to ``step.value``, as far as both details stay within their range."""
    details = {detail.name: detail for detail in document.details}
    source, target = details[step.name], details[step.other]
    moved = min(step.value, source.value, LARGEST - target.value)
    source.value -= moved
    target.value += moved


CHANGES: Final[Mapping[Operation, Callable[[Document, Step], None]]] = {
    Operation.UPSERT: _upsert,
    Operation.DELETE: _delete,
    Operation.MOVE: _move,
}
"""The functions that change a document.  A LOAD changes nothing."""


class History:
    """The states of one document, to tell whether a read is older than its lock.

    A sum that stays the same cannot show that a reader has old details.  So a writer that holds
    the lock announces the state that it is about to commit, and reports the commit.  A reader may
    see the state that was newest when it asked, or any later one.

    The history needs no lock of its own: only the holder of the document's lock announces, and a
    newest state that two threads count wrongly is an older one, which excuses more.
    """

    def __init__(self, first: State) -> None:
        self._states: list[State] = [first]
        self.newest = 0
        """The number of the newest state that is certainly committed."""

    def announce(self, state: State) -> int:
        """Note what is about to be committed; return its number."""
        self._states.append(state)
        return len(self._states) - 1

    def committed(self, number: int) -> None:
        """The commit of this state has returned; a later one may have overtaken it."""
        self.newest = max(self.newest, number)

    def has_been(self, state: State, since: int) -> bool:
        """Return whether the document was in this state at any time since that number."""
        return state in self._states[since:]


@dataclass(eq=False)
class Worker:
    """One thread of a run, with its counts.

    :param histories: of every document, by its number.
    """

    sessions: Callable[[], LockingSession]
    plan: Plan
    histories: Mapping[int, History]
    stop: Event
    tally: Tally = field(default_factory=Tally)

    def work(self, thread: int, engine: Engine, start: Barrier) -> None:
        """Wait until every thread is connected; then take the steps of this one."""
        try:
            with engine.connect():  # held meanwhile: every thread makes one of its own
                start.wait()
            for step in self.plan.steps(thread):
                if self.stop.is_set():
                    break
                self._take(step)
        except BrokenBarrierError:
            pass  # another thread could not connect, and says why
        except Exception as error:  # noqa: BLE001  # a thread has nobody to raise it to
            start.abort()
            self.tally.note_error(error)

    def _take(self, step: Step) -> None:
        for attempt in range(ATTEMPTS):
            self.tally.retries += attempt > 0
            try:
                self._attempt(step)
            except Exception as error:  # noqa: BLE001  # every one is reported
                self.tally.note_error(error)
                if not (isinstance(error, DocLockError) and error.retryable):
                    return
            else:
                return

    def _attempt(self, step: Step) -> None:
        with self.sessions() as session:
            document, waited = self._read(session, step)
            if step.operation is Operation.LOAD:
                session.release_locks()
            else:
                self._change(session, document, step)
        self.tally.waits.setdefault(step.operation, []).append(waited)

    def _read(self, session: LockingSession, step: Step) -> tuple[Document, float]:
        history = self.histories[step.document]
        newest = history.newest
        began = perf_counter()
        read = session.get_document if self.plan.whole else session.get_entity
        document = read(Document, step.document, self.plan.lock_of(step.operation))
        waited = perf_counter() - began
        assert document is not None  # no operation deletes one
        total = document.total
        sleep(0)  # another thread may come in between, with locks and without
        details = document.values()
        self.tally.broken_reads += total != sum(details.values())
        # Without locks, the order of announcing is not that of committing.
        self.tally.stale_reads += self.plan.locks and not history.has_been(details, newest)
        return document, waited

    def _change(self, session: LockingSession, document: Document, step: Step) -> None:
        history = self.histories[step.document]
        CHANGES[step.operation](document, step)
        number = history.announce(document.values())
        session.save_changes()
        history.committed(number)
