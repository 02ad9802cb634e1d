"""The parts of the stress fixture, tested for what the acceptance test relies on."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, event
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, LockingSession, LockNotSupported, LockOptions
from sa_doclock.tools.cli.database import open_database
from sa_doclock.tools.cli.workload import (
    TABLE_NAMES,
    Operation,
    Plan,
    TableError,
    check_locks,
    fresh_tables,
    left_by_others,
    run,
    runner,
)
from sa_doclock.tools.cli.workload.run_plan import WorkloadStep
from sa_doclock.tools.cli.workload.runner import (
    CHANGES,
    History,
    RunTally,
    Worker,
    broken_documents,
    percentile,
)
from sa_doclock.tools.cli.workload.tables import LARGEST, NAMES, Detail, Document, fill
from tests.support.databases import Database

SMALL = Plan(documents=2, threads=3, iterations=4, seed=1)
on_sqlite = pytest.mark.databases("sqlite")


def test_the_same_seed_gives_every_thread_the_same_steps() -> None:
    again = Plan(seed=7)
    assert [list(Plan(seed=7).steps(n)) for n in range(30)] == [
        list(again.steps(n)) for n in range(30)
    ]
    assert list(again.steps(0)) != list(again.steps(1))
    assert list(again.steps(0)) != list(Plan(seed=8).steps(0))
    assert again.first_states() == Plan(seed=7, locks=False).first_states()


def test_the_steps_do_not_depend_on_the_locks() -> None:
    assert list(Plan(seed=7).steps(3)) == list(Plan(seed=7, locks=False).steps(3))


@pytest.mark.parametrize(
    ("details_only", "operations"),
    [
        (False, {Operation.UPSERT, Operation.DELETE, Operation.LOAD}),
        (True, {Operation.MOVE, Operation.LOAD}),
    ],
)
def test_every_operation_name_and_document_comes_up(
    details_only: bool, operations: set[Operation]
) -> None:
    steps = list(Plan(details_only=details_only, iterations=500).steps(0))
    assert {step.operation for step in steps} == operations
    assert {step.name for step in steps} == set(NAMES)
    assert {step.document for step in steps} == set(range(5))
    assert {step.value for step in steps} == set(range(LARGEST + 1))
    assert all(step.name != step.other for step in steps)


def document(**details: int) -> Document:
    return Document(
        id=0,
        total=sum(details.values()),
        details=[Detail(name=name, value=value) for name, value in details.items()],
    )


@pytest.mark.parametrize(
    ("operation", "before", "value", "after"),
    [
        (Operation.UPSERT, {"N0": 1, "N1": 2}, 9, {"N0": 9, "N1": 2}),
        (Operation.UPSERT, {"N1": 2}, 9, {"N1": 2, "N0": 9}),
        (Operation.DELETE, {"N0": 1, "N1": 2}, 0, {"N1": 2}),
        (Operation.DELETE, {"N1": 2}, 0, {"N1": 2}),
        (Operation.MOVE, {"N0": 5, "N1": 2}, 3, {"N0": 2, "N1": 5}),
        (Operation.MOVE, {"N0": 2, "N1": 2}, 3, {"N0": 0, "N1": 4}),
        (Operation.MOVE, {"N0": 9, "N1": 8}, 3, {"N0": 8, "N1": 9}),
    ],
)
def test_an_operation_leaves_a_right_total(
    operation: Operation, before: dict[str, int], value: int, after: dict[str, int]
) -> None:
    changed = document(**before)
    CHANGES[operation](changed, WorkloadStep(operation, 0, "N0", "N1", value))
    assert changed.values() == after
    assert changed.total == sum(after.values())


def test_a_read_may_be_as_old_as_its_lock_but_no_older() -> None:
    history = History({"N0": 1})
    history.committed(history.announce({"N0": 2}))
    asked = history.newest
    assert not history.has_been({"N0": 1}, asked)
    assert history.has_been({"N0": 2}, asked)
    number = history.announce({"N0": 3})
    assert history.has_been({"N0": 2}, history.newest)  # its commit may have failed
    assert history.has_been({"N0": 3}, asked)
    history.committed(number)
    assert not history.has_been({"N0": 2}, history.newest)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert (percentile(values, 50), percentile(values, 99)) == (50.0, 99.0)
    assert percentile([3.0], 99) == 3.0
    assert percentile([], 50) is None


def test_errors_are_counted_by_class_with_the_first_message() -> None:
    tally, other = RunTally(), RunTally()
    tally.note_error(DeadlockDetected("first\nsecond line"))
    tally.note_error(DeadlockDetected("later"))
    other.note_error(ValueError(""))
    tally.add(other)
    assert (tally.error_count, tally.deadlocks) == (3, 2)
    assert tally.errors["DeadlockDetected"].first == "first"
    assert tally.errors["ValueError"].first == "ValueError('')"


@on_sqlite
def test_the_counts_add_up(engine: Engine) -> None:
    outcome = run(engine, SMALL)
    assert outcome.tally.done == sum(map(len, outcome.tally.waits.values())) == 12
    assert outcome.ok
    assert not outcome.interrupted


class OnlyLoads(Plan):
    @property
    def operations(self) -> tuple[Operation, ...]:
        return (Operation.LOAD,)


@on_sqlite
def test_what_a_read_finds_wrong_is_counted(engine: Engine) -> None:
    plan = OnlyLoads(documents=1, threads=1, iterations=3)
    fill(engine, {0: {"N0": 1}})
    with engine.begin() as connection:
        connection.execute(sa.update(Document).values(total=2))
    histories = {0: History({"N0": 7})}  # the database is behind
    worker = Worker(sessionmaker(engine, class_=LockingSession), plan, histories, threading.Event())
    worker.work(0, engine, threading.Barrier(1))
    assert (worker.tally.broken_reads, worker.tally.stale_reads) == (3, 3)
    assert worker.tally.done == 3


@on_sqlite
def test_one_document_that_is_wrong_in_the_end_is_reported(engine: Engine) -> None:
    fill(engine, {1: {"N0": 4, "N1": 5}, 2: {"N0": 1}, 3: {}})
    assert broken_documents(engine) == ()
    with engine.begin() as connection:
        connection.execute(sa.update(Document).where(Document.id == 2).values(total=8))
        connection.execute(sa.update(Document).where(Document.id == 3).values(total=1))
    assert broken_documents(engine) == ((2, 8, 1), (3, 1, 0))


@on_sqlite
def test_an_error_in_a_thread_is_counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_session: LockingSession) -> None:
        msg = "the disk is full"
        raise OSError(msg)

    monkeypatch.setattr(LockingSession, "save_changes", fail)
    outcome = run(engine, SMALL)
    writes = [step for n in range(3) for step in SMALL.steps(n) if step.operation.value != "load"]
    assert outcome.tally.errors["OSError"].count == len(writes) > 0
    assert outcome.tally.errors["OSError"].first == "the disk is full"
    assert outcome.tally.retries == 0
    assert not outcome.ok


@on_sqlite
def test_a_retryable_error_is_tried_again_and_counted_every_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = threading.Semaphore(2)
    save_changes = LockingSession.save_changes

    def deadlock_twice(session: LockingSession) -> None:
        if fails.acquire(blocking=False):
            raise DeadlockDetected("victim")
        save_changes(session)

    monkeypatch.setattr(LockingSession, "save_changes", deadlock_twice)
    outcome = run(engine, SMALL)
    assert (outcome.tally.deadlocks, outcome.tally.retries, outcome.tally.done) == (2, 2, 12)
    assert not outcome.ok


@on_sqlite
def test_a_server_that_refuses_connections_ends_the_run(engine: Engine) -> None:
    refused = threading.Semaphore(2)  # this many succeed

    def refuse(*_: object) -> None:
        if not refused.acquire(blocking=False):
            msg = "too many connections"
            raise OSError(msg)

    engine.dispose()
    event.listen(engine, "do_connect", refuse)
    outcome = run(engine, SMALL)
    event.remove(engine, "do_connect", refuse)
    assert outcome.tally.done == 0
    assert outcome.tally.errors["OSError"].first == "too many connections"


@on_sqlite
def test_a_server_that_is_gone_at_the_end_does_not_hide_what_was_counted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: Engine) -> None:
        raise sa.exc.OperationalError("SELECT 1", None, OSError("gone"))

    monkeypatch.setattr(runner, "broken_documents", gone)
    outcome = run(engine, SMALL)
    assert outcome.tally.done == 12
    assert outcome.tally.errors.keys() == {"OperationalError"}


@on_sqlite
def test_ctrl_c_ends_every_thread(engine: Engine) -> None:
    def press(_: object) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    outcome = run(engine, replace(SMALL, iterations=100_000), press)
    assert outcome.interrupted
    assert not outcome.ok
    assert threading.active_count() == before
    assert outcome.tally.error_count == 0, outcome.tally.errors


@on_sqlite
def test_an_exception_of_the_watcher_comes_out_after_every_thread(engine: Engine) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        run(engine, replace(SMALL, iterations=100_000), fail)
    assert threading.active_count() == before


def test_the_tables_are_there_for_the_run_and_gone_after_it(database: Database) -> None:
    with open_database(database.url, 2) as target:
        with fresh_tables(target.engine):
            assert set(TABLE_NAMES) <= set(sa.inspect(target.engine).get_table_names())
        assert set(TABLE_NAMES).isdisjoint(sa.inspect(target.engine).get_table_names())


def test_a_table_of_the_same_name_is_left_alone(database: Database) -> None:
    with open_database(database.url, 2) as target:
        theirs = sa.Table(Detail.__tablename__, sa.MetaData(), sa.Column("theirs", sa.Integer))
        theirs.create(target.engine)
        try:
            with pytest.raises(TableError, match=Detail.__tablename__), fresh_tables(target.engine):
                pass
            found = [
                column["name"] for column in sa.inspect(target.engine).get_columns(theirs.name)
            ]
            assert found == ["theirs"]
            assert not sa.inspect(target.engine).has_table(Document.__tablename__)
        finally:
            theirs.drop(target.engine)


class CtrlC:
    """Ctrl-C at one step of an engine; ``steps`` counts the steps."""

    def __init__(self, engine: Engine) -> None:
        self.at = -1
        self.steps = 0
        for name in ("checkout", "before_cursor_execute", "after_cursor_execute", "checkin"):
            event.listen(engine, name, self._step)

    def _step(self, *_: object) -> None:
        self.steps += 1
        if self.steps == self.at:
            self.at = -1
            raise KeyboardInterrupt


@on_sqlite
def test_wherever_ctrl_c_comes_the_tables_are_gone(database: Database) -> None:
    with open_database(database.url, 99) as (engine, *_):  # Ctrl-C at a check-in takes a place
        ctrl_c = CtrlC(engine)
        with fresh_tables(engine):
            pass
        total = ctrl_c.steps
        assert total > 10
        for at in range(1, total + 1):
            ctrl_c.at, ctrl_c.steps = at, 0
            with pytest.raises(KeyboardInterrupt), fresh_tables(engine):
                pass
            left = {*TABLE_NAMES} & {*sa.inspect(engine).get_table_names()}
            assert not left, f"at step {at} of {total}"


@on_sqlite
def test_tables_of_another_run_are_named_and_not_touched(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE doclock_stress_doc_left (id INTEGER)")
    assert left_by_others(engine) == ["doclock_stress_doc_left"]


@on_sqlite
def test_a_lock_that_the_database_cannot_give_is_refused_before_the_run(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = []

    def refuse(_session: object, _entity: object, _ident: object, lock: LockOptions) -> None:
        wanted.append(lock)
        raise LockNotSupported("no")

    monkeypatch.setattr(LockingSession, "get_entity", refuse)
    with pytest.raises(LockNotSupported):
        check_locks(engine, SMALL)
    assert wanted[0] in {LockOptions.ForUpdate, LockOptions.SharedRead}
