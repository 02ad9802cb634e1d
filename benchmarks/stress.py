"""Compare the time of the stress fixture with the same program written by hand with the ORM.

Many threads change and read five documents, and check every read, as ``sa-doclock stress``
does: 30 threads with 50 operations each, and 64 threads with 23.  By hand the same steps are
taken with ``Session.get(with_for_update=True, populate_existing=True)`` and a lazy load, on
classes that are not declared.  ``errors`` are those of sa_doclock, with inconsistent reads and
documents added up.

    python -m benchmarks.stress [--databases postgresql,mysql,mariadb] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Barrier, Event, Thread
from time import perf_counter, sleep
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, relationship, sessionmaker

from benchmarks.lab import script
from benchmarks.lab.figures import Figure
from benchmarks.lab.pairing import interval
from benchmarks.lab.places import SERVERS, Place
from benchmarks.ways.orm import begin_by_hand
from sa_doclock import LockingSession
from sa_doclock.tools.cli.workload import Operation, Plan, fresh_tables
from sa_doclock.tools.cli.workload.run_plan import WorkloadStep
from sa_doclock.tools.cli.workload.runner import (
    CHANGES,
    History,
    RunTally,
    Worker,
    broken_documents,
)
from sa_doclock.tools.cli.workload.tables import Base, Detail, Document, fill

ROUNDS = 3
MORE_THREADS_ROUNDS = 2
SIZES = (Plan(threads=30, iterations=50), Plan(threads=64, iterations=23))
QUICK_SIZES = (Plan(threads=30, iterations=5), Plan(threads=64, iterations=2))
BY_HAND = "by hand"


class PlainBase(DeclarativeBase):
    metadata = Base.metadata


class PlainDetail(PlainBase):
    __table__ = sa.inspect(Detail).local_table
    __mapper_args__ = {"confirm_deleted_rows": False}  # noqa: RUF012  # not a field


class PlainDocument(PlainBase):
    """The same tables, without the listeners of a declared document."""

    __table__ = sa.inspect(Document).local_table
    details: Mapped[list[PlainDetail]] = relationship(
        cascade="all, delete-orphan", overlaps="details"
    )

    values = Document.values
    add_up = Document.add_up


class ByHand(Worker):
    """A worker that does the same work without sa_doclock."""

    def __init__(self, engine: sa.Engine, *args: Any) -> None:
        super().__init__(*args)
        self._plain = sessionmaker(engine)
        self._begin = begin_by_hand(engine)

    def _attempt(self, step: WorkloadStep) -> None:
        with self._plain() as session:
            document, waited = self._read_by_hand(session, step)
            if step.operation is Operation.LOAD:
                session.rollback()
            else:
                self._change_by_hand(session, document, step)
        self.tally.waits.setdefault(step.operation, []).append(waited)

    def _read_by_hand(self, session: Session, step: WorkloadStep) -> tuple[Any, float]:
        history = self.histories[step.document]
        newest = history.newest
        began = perf_counter()
        shared = step.operation is Operation.LOAD
        self._begin(session, "BEGIN" if shared else "BEGIN IMMEDIATE")
        lock: Any = {"read": True} if shared else True
        document: Any = session.get(
            PlainDocument, step.document, with_for_update=lock, populate_existing=True
        )
        waited = perf_counter() - began
        total = document.total
        sleep(0)
        details = document.values()
        self.tally.broken_reads += total != sum(details.values())
        self.tally.stale_reads += not history.has_been(details, newest)
        return document, waited

    def _change_by_hand(self, session: Session, document: Any, step: WorkloadStep) -> None:
        history = self.histories[step.document]
        if step.operation is Operation.UPSERT:
            _upsert(document, step)
        else:
            CHANGES[step.operation](document, step)
        number = history.announce(document.values())
        session.commit()
        history.committed(number)


def _upsert(document: Any, step: WorkloadStep) -> None:
    for detail in document.details:
        if detail.name == step.name:
            detail.value = step.value
            break
    else:
        document.details.append(PlainDetail(name=step.name, value=step.value))
    document.add_up()


class Outcome(NamedTuple):
    """One run."""

    seconds: float
    wrong: int
    first_error: str


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        # The file allows one writer at a time: 30 threads would only measure SQLite's own waits.
        run.on_each((*(("sqlite",) if run.tiny else ()), *SERVERS), measure_all)


def measure_all(run: script.Script, place: Place) -> None:
    engine = place.engine(pool_size=max(plan.threads for plan in SIZES), max_overflow=0)
    with fresh_tables(engine):
        for plan in sizes(run):
            measure(run, place, engine, plan)


def sizes(run: script.Script) -> Sequence[Plan]:
    if run.tiny:
        return (Plan(threads=2, iterations=2),)
    return QUICK_SIZES if run.quick else SIZES


def measure(run: script.Script, place: Place, engine: sa.Engine, plan: Plan) -> None:
    rounds = ROUNDS if plan.threads == SIZES[0].threads else MORE_THREADS_ROUNDS
    if run.tiny or run.quick:
        rounds = 1
    outcomes: dict[str, list[Outcome]] = {name: [] for name in WAYS}
    for number in range(rounds):
        names = list(WAYS)
        names = names[number % len(names) :] + names[: number % len(names)]
        for name in names:
            outcomes[name].append(WAYS[name](engine, plan))
    title = f"{run.findings.servers[place.name]}, {plan.threads} threads x {plan.iterations}"
    table = run.table(title, "way", "seconds", "/ by hand", "errors", "first error")
    group = f"{place.name}.threads_{plan.threads}"
    for name, found in outcomes.items():
        pairs = zip(found, outcomes[BY_HAND], strict=True)
        figure = interval([one.seconds / other.seconds for one, other in pairs])
        wrong = sum(one.wrong for one in found)
        run.findings.note(f"{group}.{name.replace(' ', '_')}.to_hand", figure)
        run.findings.note(f"{group}.{name.replace(' ', '_')}.errors", Figure(wrong))
        first = next((one.first_error for one in found if one.first_error), "")
        table.add_row(name, f"{found[0].seconds:.2f}", str(figure), str(wrong), first)
    run.show(table)


def by_hand(engine: sa.Engine, plan: Plan) -> Outcome:
    sessions = sessionmaker(engine, class_=LockingSession)  # unused, but a Worker requires it
    return carry_out(engine, plan, lambda *shared: ByHand(engine, sessions, plan, *shared))


def entity(engine: sa.Engine, plan: Plan, *, whole: bool = False) -> Outcome:
    sessions = sessionmaker(engine, class_=LockingSession)
    plan = Plan(threads=plan.threads, iterations=plan.iterations, whole=whole)
    return carry_out(engine, plan, lambda *shared: Worker(sessions, plan, *shared))


def document(engine: sa.Engine, plan: Plan) -> Outcome:
    return entity(engine, plan, whole=True)


WAYS = {BY_HAND: by_hand, "get_entity": entity, "get_document": document}


def carry_out(engine: sa.Engine, plan: Plan, make: Callable[..., Worker]) -> Outcome:
    first = plan.first_states()
    fill(engine, first)
    histories = {number: History(state) for number, state in first.items()}
    workers = [make(histories, Event()) for _ in range(plan.threads)]
    start = Barrier(plan.threads + 1)
    threads = [
        Thread(target=worker.work, args=(number, engine, start), daemon=True)
        for number, worker in enumerate(workers)
    ]
    for thread in threads:
        thread.start()
    start.wait()
    began = perf_counter()
    for thread in threads:
        thread.join()
    seconds = perf_counter() - began
    tally = RunTally()
    for worker in workers:
        tally.add(worker.tally)
    missing = plan.total_steps - tally.done
    wrong = tally.error_count + tally.broken_reads + tally.stale_reads + missing
    told = next((f"{name}: {kind.first}" for name, kind in tally.errors.items()), "")
    return Outcome(seconds, wrong + len(broken_documents(engine)), told)


if __name__ == "__main__":
    main()
