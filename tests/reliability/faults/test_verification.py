"""The verification finds each error that it looks for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, LockFailed, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.core.ledger import Ledger
from tests.reliability.faults import afterwards as leftovers
from tests.reliability.faults import ways
from tests.reliability.faults.afterwards import Found, locks_left, look_on_disk, pool_is_wrong
from tests.reliability.faults.clients import take
from tests.reliability.faults.model import Folder, Injected, Log, Mark, change, is_typed, look
from tests.reliability.faults.scene import Scene
from tests.reliability.faults.ways import Desk
from tests.support.databases import PIPELINED, Database

pytestmark = pytest.mark.own_logic

FOR_UPDATE = LockOptions.ForUpdate


def updated(scene: Scene) -> Log:
    """Change two folders once, successfully."""
    log, engine = scene.empty_log(), scene.engine()
    factory = sessionmaker(engine, class_=LockingSession)
    assert take(Desk(factory, log, random.Random(1)), "get_documents")
    return log


def found_after(scene: Scene, log: Log, *statements: sa.Executable) -> Found:
    with scene.direct.begin() as connection:
        for statement in statements:
            connection.execute(statement)
    with scene.direct.connect() as connection:
        return look_on_disk(connection, log)


@pytest.mark.not_databases("mssql", "sqlite-journal")
def test_nothing_is_wrong_with_an_update_that_worked(scene: Scene) -> None:
    assert found_after(scene, updated(scene)) == Found(acknowledged=1)


@pytest.mark.not_databases("mssql", "sqlite-journal")
def test_an_update_that_is_there_by_half(scene: Scene) -> None:
    log = updated(scene)
    (attempt,) = log.updates()
    first = min(attempt.marks)
    found = found_after(scene, log, sa.delete(Mark).where(Mark.folder_id == first))
    assert len(found.inconsistent) == 2  # the folder's total differs from its marks, too


@pytest.mark.not_databases("mssql", "sqlite-journal")
def test_an_update_that_is_there_though_it_failed(scene: Scene) -> None:
    log = updated(scene)
    (attempt,) = log.updates()
    attempt.transaction.outcome = type(attempt.outcome).ABORTED
    assert any("failed before" in what for what in found_after(scene, log).inconsistent)


@pytest.mark.not_databases("mssql", "sqlite-journal")
def test_a_folder_that_does_not_add_up(scene: Scene) -> None:
    log = updated(scene)
    found = found_after(scene, log, sa.update(Folder).values(total=77))
    assert len(found.inconsistent) == 4
    assert not found.lost


@pytest.mark.not_databases("mssql", "sqlite-journal")
@pytest.mark.parametrize("name", [False, True])
def test_a_lock_that_is_left(scene: Scene, monkeypatch: pytest.MonkeyPatch, name: bool) -> None:
    scene.empty_log()
    monkeypatch.setattr(leftovers, "PATIENCE", 0)
    with LockingSession(scene.engine()) as session:
        if name:
            session.lock_key("faults")
        else:
            session.get_one_entity(Folder, 1, LockOptions.ForUpdate)
        assert locks_left(scene.direct)
        session.rollback()
        monkeypatch.undo()
        assert locks_left(scene.direct) == []


@pytest.mark.not_databases("mssql", "sqlite-journal")
def test_a_connection_that_has_not_come_back(scene: Scene) -> None:
    engine = scene.engine()
    with engine.connect():
        assert pool_is_wrong(engine, scene.direct) == ["1 connections have not come back"]
    assert pool_is_wrong(engine, scene.direct) == []


@pytest.mark.not_databases("mssql", "sqlite-journal")
@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_setting_that_has_leaked(scene: Scene, database: Database) -> None:
    setting = "lock_timeout = '7s'" if database.name == "postgresql" else "lock_wait_timeout = 7"
    engine = scene.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql(f"SET SESSION {setting}")
    wrong = pool_is_wrong(engine, scene.direct)  # which checks twice
    assert "a connection of the pool has" in wrong[0]


@pytest.mark.not_databases("mssql", "sqlite-journal")
def test_errors_that_are_no_errors_for_a_client() -> None:
    assert is_typed(sa.exc.OperationalError("SELECT 1", None, OSError()))
    assert not is_typed(OSError())
    assert not is_typed(Injected())
    assert not is_typed(sa.exc.IntegrityError("INSERT", None, OSError()))


# --------------------------------------------------------------------------------------------------
# Bugs that the verification must find: each is injected on purpose, and removed again.

#: With pipeline=True another path sends the COMMIT.


@pytest.fixture
def log(scene: Scene) -> Log:
    return scene.empty_log()


@pytest.fixture
def engine(scene: Scene, log: Log) -> Iterator[Engine]:
    """Make an engine whose plain reads are not snapshots: MariaDB refuses to write over a snapshot."""
    options = {"isolation_level": "READ COMMITTED"} if "sqlite" not in scene.column else {}
    engine = scene.engine(**options)
    with log.listening(engine):
        yield engine


def desk_at(engine: Engine, log: Log, pause: Callable[[], None] = ways.go_on) -> Desk:
    return Desk(sessionmaker(engine, class_=LockingSession), log, random.Random(1), pause)


def found_on(scene: Scene, log: Log) -> Found:
    with scene.direct.connect() as connection:
        return look_on_disk(connection, log)


@pytest.mark.not_databases("mssql", "sqlite-journal", PIPELINED)
@pytest.mark.parametrize("way", ["get_entity", "run_transaction"])
def test_a_commit_that_is_reported_before_it_is_sent_is_found(
    scene: Scene, engine: Engine, log: Log, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    take(desk_at(engine, log), way)
    with monkeypatch.context() as patched:  # and the connection ends before the commit is sent
        patched.setattr(engine.dialect, "do_commit", lambda _: None)
        take(desk_at(engine, log), way)
    found = found_on(scene, log)
    assert found.acknowledged == 2
    assert len(found.lost) == 1


@pytest.mark.not_databases("mssql", "sqlite-journal", PIPELINED)
@pytest.mark.parametrize("way", ["get_entity", "run_transaction"])
def test_a_commit_that_is_sent_is_not_lost(
    scene: Scene, engine: Engine, log: Log, way: str
) -> None:
    take(desk_at(engine, log), way)
    assert found_on(scene, log) == Found(acknowledged=1)


def without_rollback(
    factory: sessionmaker[LockingSession], fn: Callable[[LockingSession], Any], **_: Any
) -> None:
    with factory() as session, session.begin():
        while True:
            try:
                fn(session)
            except LockFailed:
                continue
            break


def first_a_deadlock() -> Callable[[], None]:
    """Make a pause that fails the first attempt between its changes and its commit."""
    deadlocks = iter([DeadlockDetected("the victim")])

    def pause() -> None:
        for error in deadlocks:
            raise error

    return pause


@pytest.mark.not_databases("mssql", "sqlite-journal", PIPELINED)
def test_a_retry_that_does_not_roll_back_is_found(
    scene: Scene, engine: Engine, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "run_transaction", without_rollback)
    take(desk_at(engine, log, first_a_deadlock()), "run_transaction")
    found = found_on(scene, log)
    assert found.acknowledged == 1
    assert any("was done 2 times" in what for what in found.inconsistent)


@pytest.mark.not_databases("mssql", "sqlite-journal", PIPELINED)
def test_a_retry_that_rolls_back_is_one_update(scene: Scene, engine: Engine, log: Log) -> None:
    take(desk_at(engine, log, first_a_deadlock()), "run_transaction")
    assert len(list(log.updates())) == 2
    assert found_on(scene, log) == Found(acknowledged=1)


def meanwhile(engine: Engine, log: Log) -> bool:
    """Change folder 1 from another session, if it is free; return whether it was."""
    attempt = log.begin(log.new_update())
    with LockingSession(engine, lock_timeout=0) as session:
        try:
            folder = session.get_one_entity(Folder, 1, FOR_UPDATE)
        except LockNotAvailable:
            log.give_up(attempt)
            return False
        look(log, attempt, [folder])
        change(session, attempt, [folder], random.Random(2))
        session.save_changes()
        log.acknowledge(attempt)
        return True


def reconnect_and_change(scene: Scene, engine: Engine, log: Log) -> bool:
    """Lose the connection under a lock, lock again, and change; return whether another session intervened."""
    with LockingSession(engine) as session:
        session.get_one_entity(Folder, 1, FOR_UPDATE)
        session.connection().invalidate()
        session.rollback()
        assert locks_left(scene.direct) == []
        attempt = log.begin(log.new_update())
        folder = session.get_one_entity(Folder, 1, FOR_UPDATE)
        look(log, attempt, [folder])
        came = meanwhile(engine, log)
        change(session, attempt, [folder], random.Random(1))
        session.commit()
        log.acknowledge(attempt)
    return came


@pytest.mark.not_databases("mssql", "sqlite-journal", PIPELINED)
def test_a_lock_that_is_not_restored_after_a_reconnect_is_found(
    scene: Scene, engine: Engine, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[int, Ledger] = {}  # each session keeps relying on its first ledger

    def same_ledger(ranks: Any, calls: Any) -> Ledger:
        return kept.setdefault(id(calls), Ledger(ranks, calls))

    for module in (
        "transaction.lock_transaction",
        "ledger",
    ):  # the first ledger, and its replacements
        monkeypatch.setattr(f"sa_doclock.core.{module}.Ledger", same_ledger)
    assert reconnect_and_change(scene, engine, log)
    found = found_on(scene, log)
    assert any("lost update" in what for what in found.inconsistent)
    assert any("folder 1 has the total" in what for what in found.inconsistent)


@pytest.mark.not_databases("mssql", "sqlite-journal", PIPELINED)
def test_a_lock_that_is_restored_keeps_the_others_out(
    scene: Scene, engine: Engine, log: Log
) -> None:
    assert not reconnect_and_change(scene, engine, log)
    assert found_on(scene, log) == Found(acknowledged=1)
