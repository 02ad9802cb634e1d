"""Each error that the verification looks for is found."""

from __future__ import annotations

import random

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions
from tests.reliability.faults import leftovers
from tests.reliability.faults.clients import take
from tests.reliability.faults.leftovers import locks_left
from tests.reliability.faults.log import Injected, Log, is_typed
from tests.reliability.faults.model import Folder, Mark
from tests.reliability.faults.on_disk import Found, look_on_disk
from tests.reliability.faults.pools import pool_is_wrong
from tests.reliability.faults.scene import Scene
from tests.reliability.faults.ways import Desk
from tests.support.databases import Database

pytestmark = pytest.mark.not_databases("mssql", "sqlite-journal")


def updated(scene: Scene) -> Log:
    """Change two folders, once, which works."""
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


def test_nothing_is_wrong_with_an_update_that_worked(scene: Scene) -> None:
    assert found_after(scene, updated(scene)) == Found(acknowledged=1)


def test_an_update_that_is_there_by_half(scene: Scene) -> None:
    log = updated(scene)
    (attempt,) = log.updates()
    first = min(attempt.marks)
    found = found_after(scene, log, sa.delete(Mark).where(Mark.folder_id == first))
    assert len(found.inconsistent) == 2  # and the folder has another total than its marks


def test_an_update_that_is_there_though_it_failed(scene: Scene) -> None:
    log = updated(scene)
    (attempt,) = log.updates()
    attempt.transaction.outcome = type(attempt.outcome).ABORTED
    assert any("failed before" in what for what in found_after(scene, log).inconsistent)


def test_a_folder_that_does_not_add_up(scene: Scene) -> None:
    log = updated(scene)
    found = found_after(scene, log, sa.update(Folder).values(total=77))
    assert len(found.inconsistent) == 4
    assert not found.lost


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


def test_a_connection_that_has_not_come_back(scene: Scene) -> None:
    engine = scene.engine()
    with engine.connect():
        assert pool_is_wrong(engine, scene.direct) == ["1 connections have not come back"]
    assert pool_is_wrong(engine, scene.direct) == []


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_setting_that_has_leaked(scene: Scene, database: Database) -> None:
    setting = "lock_timeout = '7s'" if database.name == "postgresql" else "lock_wait_timeout = 7"
    engine = scene.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql(f"SET SESSION {setting}")
    wrong = pool_is_wrong(engine, scene.direct)  # which looks twice
    assert "a connection of the pool has" in wrong[0]


def test_errors_that_are_no_errors_for_a_client() -> None:
    assert is_typed(sa.exc.OperationalError("SELECT 1", None, OSError()))
    assert not is_typed(OSError())
    assert not is_typed(Injected())
    assert not is_typed(sa.exc.IntegrityError("INSERT", None, OSError()))
