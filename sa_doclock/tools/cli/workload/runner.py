"""A run of all threads at once: the steps of each, the counts, and the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError, Event, Thread
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple

from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from .... import DeadlockDetected, DocLockError, LockingSession
from .run_plan import Operation, Plan, WorkloadStep
from .tables import LARGEST, Detail, Document, State, fill, first_line


@dataclass
class ErrorKind:
    """All errors of one class."""

    count: int
    first: str  # the first message


@dataclass
class RunTally:
    """The counts of one thread, or of all."""

    waits: dict[Operation, list[float]] = field(default_factory=dict)
    """Seconds from requesting a document to getting it, for each completed operation."""
    broken_reads: int = 0
    """Reads whose details did not add up to the total."""
    stale_reads: int = 0
    """Locked reads that were older than their lock."""
    retries: int = 0
    """Operations that were retried after an error that a retry may cure."""
    errors: dict[str, ErrorKind] = field(default_factory=dict)
    """Every failed attempt by class, whether or not it was retried."""

    @property
    def done(self) -> int:
        """The number of completed operations."""
        return sum(map(len, list(self.waits.values())))  # its thread may be adding to it

    @property
    def wrong_reads(self) -> int:
        """Broken reads and stale reads."""
        return self.broken_reads + self.stale_reads

    @property
    def error_count(self) -> int:
        """All errors."""
        return sum(kind.count for kind in list(self.errors.values()))

    @property
    def deadlocks(self) -> int:
        """The errors that were deadlocks."""
        return self.count_of(DeadlockDetected.__name__)

    def count_of(self, name: str) -> int:
        """The errors of this class."""
        return self.errors[name].count if name in self.errors else 0

    def waits_of(self, operation: Operation) -> Sequence[float]:
        """The waits of this operation."""
        return self.waits.get(operation, ())

    def note_error(self, error: BaseException) -> None:
        """Count an error."""
        name = type(error).__name__
        self.errors.setdefault(name, ErrorKind(0, first_line(error))).count += 1

    def add(self, other: RunTally) -> None:
        """Add the count of another thread, which may still be counting."""
        for operation, waits in list(other.waits.items()):
            self.waits.setdefault(operation, []).extend(waits)
        self.broken_reads += other.broken_reads
        self.stale_reads += other.stale_reads
        self.retries += other.retries
        for name, kind in list(other.errors.items()):
            self.errors.setdefault(name, ErrorKind(0, kind.first)).count += kind.count


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that this percentage does not exceed; None without values."""
    if not values:
        return None
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(rank, 1) - 1]


ATTEMPTS = 4
"""The attempts of an operation whose errors say that a retry may succeed."""


def _upsert(document: Document, step: WorkloadStep) -> None:
    for detail in document.details:
        if detail.name == step.name:
            detail.value = step.value
            break
    else:
        document.details.append(Detail(name=step.name, value=step.value))
    document.add_up()


def _delete(document: Document, step: WorkloadStep) -> None:
    for detail in document.details:
        if detail.name == step.name:
            document.details.remove(detail)
            break
    document.add_up()


def _move(document: Document, step: WorkloadStep) -> None:
    """Move up to ``step.value``, within the range of both details."""
    details = {detail.name: detail for detail in document.details}
    source, target = details[step.name], details[step.other]
    moved = min(step.value, source.value, LARGEST - target.value)
    source.value -= moved
    target.value += moved


CHANGES: Final[Mapping[Operation, Callable[[Document, WorkloadStep], None]]] = {
    Operation.UPSERT: _upsert,
    Operation.DELETE: _delete,
    Operation.MOVE: _move,
}
"""The functions that change a document.  A LOAD changes nothing."""


class History:
    """The states of one document, to detect a read that is older than its lock.

    A sum that stays the same cannot show that a reader has old details.  So a writer that holds the
    lock announces the state that it is about to commit, and reports the commit.  A reader may see
    the state that was newest when it asked, or any later one.

    The history needs no lock: only the holder of the document's lock announces, and if two threads
    miscount the newest state, it is an older one, which excuses more.
    """

    def __init__(self, first: State) -> None:
        self._states: list[State] = [first]
        self.newest = 0
        """The number of the newest state that is certainly committed."""

    def announce(self, state: State) -> int:
        """Record a transaction that is about to commit; return its number."""
        self._states.append(state)
        return len(self._states) - 1

    def committed(self, number: int) -> None:
        """Record that the commit of this state returned; a later one may have overtaken it."""
        self.newest = max(self.newest, number)

    def has_been(self, state: State, since: int) -> bool:
        """Return whether the document was in this state at any time since that number."""
        return state in self._states[since:]


@dataclass(eq=False)
class Worker:
    """One thread of a run, with its counts.

    :param histories: by document number.
    """

    sessions: Callable[[], LockingSession]
    plan: Plan
    histories: Mapping[int, History]
    stop: Event
    tally: RunTally = field(default_factory=RunTally)

    def work(self, thread: int, engine: Engine, start: Barrier) -> None:
        """Wait until every thread is connected; then take the steps of this one."""
        try:
            with engine.connect():  # held so that every thread gets its own connection
                start.wait()
            for step in self.plan.steps(thread):
                if self.stop.is_set():
                    break
                self._take(step)
        except BrokenBarrierError:
            pass  # another thread could not connect, and reports it
        except Exception as error:  # noqa: BLE001  # a thread has nobody to raise it to
            start.abort()
            self.tally.note_error(error)

    def _take(self, step: WorkloadStep) -> None:
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

    def _attempt(self, step: WorkloadStep) -> None:
        with self.sessions() as session:
            document, waited = self._read(session, step)
            if step.operation is Operation.LOAD:
                session.release_locks()
            else:
                self._change(session, document, step)
        self.tally.waits.setdefault(step.operation, []).append(waited)

    def _read(self, session: LockingSession, step: WorkloadStep) -> tuple[Document, float]:
        history = self.histories[step.document]
        newest = history.newest
        began = perf_counter()
        read = session.get_document if self.plan.whole else session.get_entity
        document = read(Document, step.document, self.plan.lock_of(step.operation))
        waited = perf_counter() - began
        assert document is not None  # no operation deletes a document
        total = document.total
        sleep(0)  # lets another thread in, with and without locks
        details = document.values()
        self.tally.broken_reads += total != sum(details.values())
        # Without locks, announcements and commits may come in different orders.
        self.tally.stale_reads += self.plan.locks and not history.has_been(details, newest)
        return document, waited

    def _change(self, session: LockingSession, document: Document, step: WorkloadStep) -> None:
        history = self.histories[step.document]
        CHANGES[step.operation](document, step)
        number = history.announce(document.values())
        session.save_changes()
        history.committed(number)


_LOOK_AGAIN = 0.1  # seconds; on Windows, a join without a limit ignores Ctrl-C


class BrokenDocument(NamedTuple):
    """A document that the run left with a wrong total."""

    number: int
    total: int
    sum_of_details: int


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run."""

    plan: Plan
    tally: RunTally
    broken_documents: tuple[BrokenDocument, ...]
    seconds: float
    interrupted: bool

    @property
    def inconsistencies(self) -> int:
        """Broken reads, stale reads, and broken documents in the database at the end."""
        return self.tally.wrong_reads + len(self.broken_documents)

    @property
    def ok(self) -> bool:
        """Every step was taken, with neither an inconsistency nor an error."""
        return (
            self.inconsistencies == self.tally.error_count == 0
            and self.tally.done == self.plan.total_steps
        )


def check_locks(engine: Engine, plan: Plan) -> None:
    """Take every kind of lock once.

    :raises LockNotSupported: the database does not have it; the message says what to do.
    """
    for lock in {plan.lock_of(operation) for operation in plan.operations}:
        with LockingSession(engine) as session:
            session.get_entity(Document, 0, lock)


def run(
    engine: Engine, plan: Plan, watch: Callable[[RunTally], None] | None = None, **options: Any
) -> RunOutcome:
    """Execute the plan in existing, filled tables (see ``fresh_tables``).

    Errors of a thread are counted, never raised.  Ctrl-C ends the run after the current operations;
    the outcome says so.

    :param engine: its pool must have a connection for every thread.
    :param watch: called in this thread, several times a second.
    :param options: of LockingSession, such as a gate.
    """
    first = plan.first_states()
    fill(engine, first)
    histories = {number: History(state) for number, state in first.items()}
    sessions = sessionmaker(engine, class_=LockingSession, guard=plan.guard, **options)
    start, stop = Barrier(plan.threads), Event()
    workers = [Worker(sessions, plan, histories, stop) for _ in range(plan.threads)]
    threads = [
        Thread(target=worker.work, args=(number, engine, start), daemon=True)
        for number, worker in enumerate(workers)
    ]

    def halt() -> None:
        stop.set()
        start.abort()

    began = perf_counter()
    interrupted = _carry_out(threads, halt, lambda: watch and watch(_total(workers)))
    seconds = perf_counter() - began
    tally = _total(workers)
    try:
        broken = broken_documents(engine)
    except DBAPIError as error:  # the server is gone; the counts are still useful
        tally.note_error(error)
        broken = ()
    return RunOutcome(plan, tally, broken, seconds, interrupted)


def _carry_out(
    threads: Sequence[Thread], halt: Callable[[], None], look: Callable[[], object]
) -> bool:
    """Run the threads to their end; return whether Ctrl-C stopped them."""
    try:
        for thread in threads:
            thread.start()
        while alive := [thread for thread in threads if thread.is_alive()]:
            look()
            alive[0].join(_LOOK_AGAIN)
        look()
    except KeyboardInterrupt:
        return True
    finally:
        halt()
        for thread in threads:
            if thread.ident is not None:  # otherwise it never started
                thread.join()
    return False


def _total(workers: Sequence[Worker]) -> RunTally:
    total = RunTally()
    for worker in workers:
        total.add(worker.tally)
    return total


def broken_documents(engine: Engine) -> tuple[BrokenDocument, ...]:
    """The documents that are wrong in the database, read by one statement after the run."""
    values = func.coalesce(func.sum(Detail.value), 0)
    documents = (
        select(Document.id, Document.total, values)
        .outerjoin(Detail)
        .group_by(Document.id, Document.total)
        .having(Document.total != values)
        .order_by(Document.id)
    )
    with engine.connect() as connection:
        # MySQL's sum of integers is a Decimal
        return tuple(BrokenDocument(*map(int, row)) for row in connection.execute(documents))
