"""Another process holds the file, and is killed: its lock is gone with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.reliability.faults.model import FOLDERS, Folder
from tests.reliability.faults.sqlite.conftest import File
from tests.reliability.faults.sqlite.processes import started
from tests.reliability.faults.sqlite.worker import hold, hold_much
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

pytestmark = [pytest.mark.soak, pytest.mark.databases("sqlite")]

ForUpdate = LockOptions.ForUpdate
Enter = Callable[[str], Actor[LockingSession]]


class Elsewhere:
    """An actor in another process, as far as wait_until_blocked() looks at the holder."""

    def connection_ids(self) -> frozenset[int]:
        return frozenset({0})


def add_one(session: LockingSession) -> int:
    """Lock a folder, however long it takes, and change it; return what it was."""
    folder = session.get_document(Folder, 1, ForUpdate, lock_timeout=60)
    assert folder is not None
    before = folder.total
    session.save_changes()
    return before


@pytest.mark.parametrize("how", ["IMMEDIATE", "EXCLUSIVE"])
def test_what_is_refused_meanwhile_is_typed(file: File, database: Database, how: str) -> None:
    engine = database.engine(connect_args={"timeout": 0.05})
    row = file.row("the file held by another process, which is killed")
    with started(hold, file.path, how) as holder, LockingSession(engine) as session:
        holder.wait_for_reports()
        for timeout in (0, 0.05, None):
            with pytest.raises(LockNotAvailable):
                session.get_entity(Folder, 1, ForUpdate, lock_timeout=timeout)
        with pytest.raises(LockNotAvailable):
            session.lock_key("faults")
        with pytest.raises(sa.exc.OperationalError):
            session.connection().execute(sa.update(Folder).values(total=1))
        session.rollback()
        if how == "EXCLUSIVE" and not file.written_ahead:
            with pytest.raises(LockNotAvailable):
                session.get_entity(Folder, 1, LockOptions.SharedRead)
        else:
            assert session.get_document(Folder, 1, LockOptions.SharedRead)
        session.rollback()
        holder.kill()
        row.injected += 1
        assert session.get_entity(Folder, 1, ForUpdate | LockOptions.NoWait)
    engine.dispose()
    file.verify(row)


@pytest.mark.parametrize("how", ["IMMEDIATE", "EXCLUSIVE"])
def test_who_waits_for_it_goes_on(file: File, bob: Actor[LockingSession], how: str) -> None:
    with started(hold, file.path, how) as holder:
        holder.wait_for_reports()
        assert waits_and_goes_on(bob, holder.kill) == 0


def test_who_waits_repairs_the_file_first(file: File, bob: Actor[LockingSession]) -> None:
    with started(hold_much, *file.whose()) as holder:
        holder.wait_for_reports()
        assert waits_and_goes_on(bob, holder.kill) == 0
    assert bob.does(totals) == [0] * len(FOLDERS)


def waits_and_goes_on(bob: Actor[LockingSession], kill: Callable[[], None]) -> int:
    queued = bob.starts(add_one)
    wait_until_blocked(bob, cast("Actor[Any]", Elsewhere()), queued)
    kill()
    return queued.result()


def totals(session: LockingSession) -> list[int]:
    return list(session.scalars(sa.select(Folder.total)))
