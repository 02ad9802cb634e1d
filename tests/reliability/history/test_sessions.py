"""The command line's stress run, with workers that record their reads and writes."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import Engine

from sa_doclock import LockingSession, LockOptions
from sa_doclock.tools.cli.workload import Operation, Plan, RunOutcome, run, runner
from sa_doclock.tools.cli.workload.run_plan import WorkloadStep
from sa_doclock.tools.cli.workload.runner import Worker
from sa_doclock.tools.cli.workload.tables import NAMES, Document, State, fill
from tests.reliability.history import record
from tests.reliability.history.checker import check
from tests.reliability.history.items import Name
from tests.reliability.history.record import ABSENT, FIRST, History, Outcome, Transaction
from tests.reliability.history.sessions import (
    THREADS,
    TRANSACTIONS,
    WAYS,
    balance,
    delete_detail,
    final_state,
    first_state,
    note,
    played,
    read_again,
    set_detail,
    set_total,
)
from tests.support.databases import Database


class VersionedPlan(Plan):
    """The same steps, with values that identify their writer."""

    def first_states(self) -> dict[int, State]:
        return {number: first_state(NAMES) for number in range(self.documents)}


@dataclass
class Recorder:
    """The state that all workers share.

    :ivar meet: called by each worker after its first read.
    """

    meet: Callable[[], object]
    tick: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    number: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    done: list[record.Transaction] = field(default_factory=list)


class RecordingWorker(Worker):
    """A worker that writes versions in place of the step's values."""

    def __init__(self, recorder: Recorder, *how: Any) -> None:
        super().__init__(*how)
        self._recorder = recorder
        self._has_met = False

    def _attempt(self, step: WorkloadStep) -> None:
        recorder = self._recorder
        self._done = record.Transaction(recorder.number(), recorder.tick(), 0)
        self._done.outcome = record.Outcome.ABORTED
        try:
            super()._attempt(step)
            self._done.outcome = record.Outcome.COMMITTED
        finally:
            self._done.ended = recorder.tick()
            recorder.done.append(self._done)

    def _read(self, session: LockingSession, step: WorkloadStep) -> tuple[Document, float]:
        document, waited = super()._read(session, step)
        note(self._done, document, NAMES)
        if step.operation is Operation.LOAD:
            read_again(session, self._done, [document.id], NAMES)
        if not self._has_met:
            self._has_met = True
            self._recorder.meet()
        return document, waited

    def _change(self, session: LockingSession, document: Document, step: WorkloadStep) -> None:
        history = self.histories[step.document]
        _CHANGES[step.operation](self._done, document, step)
        balance(document)
        number = history.announce(document.values())
        self._done.committing = self._recorder.tick()
        session.save_changes()
        history.committed(number)


def _upsert(done: record.Transaction, document: Document, step: WorkloadStep) -> None:
    set_total(done, document, 1)
    set_detail(done, document, step.name, 1)


def _delete(done: record.Transaction, document: Document, step: WorkloadStep) -> None:
    set_total(done, document, 1)
    delete_detail(done, document, step.name, 1)


def _move(done: record.Transaction, document: Document, step: WorkloadStep) -> None:
    """Leaves the header alone."""
    set_detail(done, document, step.name, 1)
    set_detail(done, document, step.other, 1)


_CHANGES: Mapping[Operation, Callable[[record.Transaction, Document, WorkloadStep], None]] = {
    Operation.UPSERT: _upsert,
    Operation.DELETE: _delete,
    Operation.MOVE: _move,
}


def recorded(
    engine: Engine, plan: VersionedPlan, monkeypatch: pytest.MonkeyPatch
) -> tuple[RunOutcome, record.History]:
    """Execute the plan; return the fixture's findings, and the history.

    Without locks, all workers meet once after their reads, so that every run goes wrong in the
    same way.
    """
    together = threading.Barrier(plan.threads)
    recorder = Recorder((lambda: None) if plan.locks else (lambda: together.wait(30)))
    monkeypatch.setattr(runner, "Worker", lambda *how: RecordingWorker(recorder, *how))
    outcome = run(engine, plan)
    return outcome, record.History(recorder.done, final_state(engine))


# --------------------------------------------------------------------------------------------------
# The history of sessions that lock is correct; without locks, the checker finds anomalies.

SNAPSHOT = LockOptions.SnapshotRead


@pytest.mark.slow
def test_with_locks_there_is_no_anomaly(engine: Engine) -> None:
    run = played(engine, locks=True)
    history = run.history()
    assert list(map(str, check(history))) == []
    assert run.errors == []
    # and the sessions did overlap
    assert len(history.transactions) == THREADS * TRANSACTIONS
    assert run.ways == WAYS.keys()
    outcomes = Counter(one.outcome for one in history.transactions.values())
    assert outcomes[Outcome.COMMITTED] > outcomes[Outcome.ABORTED] > 0
    seen = [place for each in history.seen.values() for place in each.items()]
    assert len({version.writer for _, version in seen if version != FIRST}) > THREADS
    assert any(history.is_gone(*place) for place in seen)
    assert all(version != ABSENT for _, version in seen)  # the checker knew which deletion it met


@pytest.mark.slow
@pytest.mark.exhaustive
def test_without_locks_there_are_lost_updates(engine: Engine, database: Database) -> None:
    if database.name == "mariadb":  # 1020 refuses them at REPEATABLE READ, since 11.6.2
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    found = check(played(engine, locks=False).history())
    assert Name.P4 in {one.name for one in found}


# --------------------------------------------------------------------------------------------------
# A change between two reads of one document, step by step.

NAMES_SESSIONS = ("N0", "N1")
PHANTOMS = {Name.P2, Name.P3, Name.DOCUMENT}

# With a rollback journal, a writer cannot commit while another session reads.


def _committed(engine: Engine, tick: int) -> Transaction:
    """Insert one detail and delete another."""
    done = Transaction(tick, tick, tick)
    with LockingSession(engine) as session:
        document = session.get_one_entity(Document, 1, LockOptions.ForUpdate)
        note(done, document, NAMES_SESSIONS)
        set_total(done, document, 1)
        set_detail(done, document, NAMES_SESSIONS[1], 1)
        delete_detail(done, document, NAMES_SESSIONS[0], 1)
        balance(document)
        session.save_changes()
    return done


def _names(engine: Engine, lock: LockOptions, *, again: bool) -> set[Name]:
    """Read a header, and its details or all of it again after the change."""
    if lock is LockOptions.None_ and engine.dialect.name in ("mysql", "mariadb"):
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    fill(engine, {1: first_state(NAMES_SESSIONS[:1])})
    reader = Transaction(1, 1, 3)
    with LockingSession(engine) as session:
        document = session.get_one_entity(Document, 1, lock)
        if again:
            note(reader, document, NAMES_SESSIONS)
        writer = _committed(engine, 2)
        if again:
            read_again(session, reader, [1], NAMES_SESSIONS)
        else:
            note(reader, document, NAMES_SESSIONS)
    return {found.name for found in check(History([reader, writer], final_state(engine)))}


@pytest.mark.not_databases("sqlite-journal")
def test_a_plain_read_gets_a_header_and_details_that_do_not_belong_together(engine: Engine) -> None:
    assert _names(engine, LockOptions.None_, again=False) == {Name.FRACTURED, Name.G_SINGLE}


@pytest.mark.not_databases("sqlite-journal")
def test_a_plain_read_gets_another_document_the_second_time(engine: Engine) -> None:
    assert _names(engine, LockOptions.None_, again=True) == PHANTOMS


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("again", [False, True])
def test_a_snapshot_does_not(engine: Engine, again: bool) -> None:
    assert _names(engine, LockOptions.SnapshotRead, again=again) == set()


# --------------------------------------------------------------------------------------------------
# The recorded stress run: its own checks and the checker agree.

SHARED = LockOptions.SharedRead
SMALL = VersionedPlan(documents=3, threads=THREADS, iterations=25, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "whole", "details_only"),
    [
        (SHARED, False, False),
        (SHARED, True, True),
        (SNAPSHOT, True, False),
        (SNAPSHOT, False, True),
    ],
    ids=["shared", "shared-whole-details", "snapshot-whole", "snapshot-details"],
)
def test_with_locks_its_history_has_no_anomaly(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    read: LockOptions,
    whole: bool,
    details_only: bool,
) -> None:
    plan = replace(SMALL, read=read, whole=whole, details_only=details_only)
    outcome, history = recorded(engine, plan, monkeypatch)
    assert list(map(str, check(history))) == []
    assert outcome.ok, outcome.tally.errors
    assert len(history.transactions) == plan.total_steps


def test_without_locks_it_has(
    engine: Engine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.name == "mariadb":  # 1020 refuses them at REPEATABLE READ, since 11.6.2
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    plan = replace(SMALL, locks=False, documents=1, iterations=3)
    _, history = recorded(engine, plan, monkeypatch)
    assert Name.P4 in {found.name for found in check(history)}


# --------------------------------------------------------------------------------------------------
# A database that shows uncommitted data: the checker reports it.

# PostgreSQL lacks this level, and SQLite has it only within one process's shared cache.


def _names_dirty(engine: Engine) -> list[Name]:
    """One session writes a header, and rolls back after the other reads it."""
    fill(engine, {1: first_state(["N0"])})
    writer, reader = Transaction(1, 1, 3, Outcome.ABORTED), Transaction(2, 2, 4)
    with LockingSession(engine, guard="off") as one, LockingSession(engine) as other:
        written = one.get_one_entity(Document, 1)
        set_total(writer, written, 1)
        balance(written)
        one.flush()
        note(reader, other.get_one_entity(Document, 1), ["N0"])
        one.rollback()
    return [found.name for found in check(History([writer, reader]))]


@pytest.mark.databases("mysql", "mariadb")
def test_at_read_uncommitted_an_aborted_read_is_found(engine: Engine) -> None:
    dirty = engine.execution_options(isolation_level="READ UNCOMMITTED")
    assert _names_dirty(dirty) == [Name.G1A]


@pytest.mark.databases("mysql", "mariadb")
def test_at_read_committed_there_is_none(engine: Engine) -> None:
    clean = engine.execution_options(isolation_level="READ COMMITTED")
    assert _names_dirty(clean) == []
