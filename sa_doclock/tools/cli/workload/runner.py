"""A run of all threads at once, and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Barrier, Event, Thread
from time import perf_counter
from typing import Any, NamedTuple

from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from .... import LockingSession
from .model import Detail, Document
from .plan import Plan
from .tables import fill
from .tally import Tally
from .worker import History, Worker

_LOOK_AGAIN = 0.1  # seconds; a join without a limit would not hear Ctrl-C on Windows


class BrokenDocument(NamedTuple):
    """A document that the run has left with a wrong total."""

    number: int
    total: int
    sum_of_details: int


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    plan: Plan
    tally: Tally
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

    :raises LockNotSupported: the database cannot give it; the text says what to do.
    """
    for lock in {plan.lock_of(operation) for operation in plan.operations}:
        with LockingSession(engine) as session:
            session.get_entity(Document, 0, lock)


def run(
    engine: Engine, plan: Plan, watch: Callable[[Tally], None] | None = None, **options: Any
) -> Outcome:
    """Carry out the plan in tables that are there (see ``fresh_tables``); fill them before.

    An error of a thread is counted, never raised.  Ctrl-C ends the run after the operations
    that are under way; the outcome says so.

    :param engine: its pool must have a connection for every thread.
    :param watch: called in this thread, some times in a second.
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
    except DBAPIError as error:  # the server has gone; what was counted is worth telling
        tally.note_error(error)
        broken = ()
    return Outcome(plan, tally, broken, seconds, interrupted)


def _carry_out(
    threads: Sequence[Thread], halt: Callable[[], None], look: Callable[[], object]
) -> bool:
    """Run the threads to their end; return whether Ctrl-C came first."""
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
            if thread.ident is not None:  # else it was never started
                thread.join()
    return False


def _total(workers: Sequence[Worker]) -> Tally:
    total = Tally()
    for worker in workers:
        total.add(worker.tally)
    return total


def broken_documents(engine: Engine) -> tuple[BrokenDocument, ...]:
    """The documents that are wrong in the database, read by one statement when all is quiet."""
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
