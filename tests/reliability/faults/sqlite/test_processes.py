"""Processes that change the same file are killed at any moment."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
from collections.abc import Callable
from typing import Any, cast

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.reliability import Row, Soak
from tests.reliability.faults.model import FOLDERS, Folder
from tests.reliability.faults.sqlite.conftest import File
from tests.reliability.faults.sqlite.processes import started, wait_a_moment
from tests.reliability.faults.sqlite.worker import (
    WAYS,
    DieWriting,
    change_and_be_silent,
    change_folders,
    change_once,
    hold,
    hold_much,
    hold_much_without_a_journal,
    stop_there,
)
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

pytestmark = [pytest.mark.soak, pytest.mark.databases("sqlite")]


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_two_processes_are_killed_in_or_about_a_commit(file: File, soak: Soak) -> None:
    chance = random.Random("two processes")
    row = file.row("processes killed by SIGKILL")
    for number in soak.rounds(short=4, share=0.6):
        with (
            started(change_folders, *file.whose()) as victim,
            started(change_folders, *file.whose()) as other,
        ):
            victim.wait_for_reports(chance.randint(1, 6))
            wait_a_moment(chance)
            victim.kill()
            other.wait_for_reports(2)  # who is not kept from going on
            wait_a_moment(chance)
        row.injected += 2
        acknowledged = file.verify(row)
        if number % 20 == 0:
            soak.progress(
                f"{file.column}: {row.injected} processes killed, {acknowledged} updates there"
            )
    assert acknowledged > 0


# --------------------------------------------------------------------------------------------------
# Another process holds the file, and is killed: its lock is gone with it.

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


# --------------------------------------------------------------------------------------------------
# A process is killed at a certain point of its commit, from before it to behind it.

PAGE = 4096
FRAME = PAGE + 24  # of the write-ahead log: a page and its header
IN_A_PAGE = 100


def commit_something(file: File) -> None:
    """Let a process make a change, and end."""
    with started(change_once, *file.whose(), "get_entity", no_further) as child:
        assert child.ended() == 0


def no_further(_: object) -> None: ...


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_before_the_commit_is_sent(file: File) -> None:
    commit_something(file)
    with started(change_once, *file.whose(), "get_documents", stop_there) as child:
        child.wait_for_reports()
    row = file.row("a process killed before its COMMIT")
    row.injected += 1
    assert file.verify(row) == 1


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_after_the_commit_and_before_anybody_knows(file: File) -> None:
    commit_something(file)
    with started(change_and_be_silent, *file.whose()) as child:
        child.wait_for_reports()
    row = file.row("a process killed behind its COMMIT")
    row.injected += 1
    assert file.verify(row) == 1
    assert len(marks_in(file)) == 3  # of the first a folder, of the second two


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_when_a_part_is_in_the_file_already(file: File) -> None:
    """The cache was too small: in journal mode the file itself is wrong until it is repaired."""
    commit_something(file)
    with started(hold_much, *file.whose()) as child:
        child.wait_for_reports()
    written = file.writes_first if file.written_ahead else file.path
    assert written.stat().st_size > 20 * PAGE
    assert file.writes_first.stat().st_size > PAGE  # in journal mode: what the pages were, hot
    row = file.row("a process killed with half of its changes in the file")
    row.injected += 1
    assert file.verify(row) == 1
    assert len(marks_in(file)) == 1


@pytest.mark.timeout(1800)
def test_without_a_journal_it_is_found_broken(file: File) -> None:
    commit_something(file)
    with started(hold_much_without_a_journal, *file.whose()) as child:
        child.wait_for_reports()
    with pytest.raises(AssertionError, match=r"integrity_check|total|never to be"):
        file.verify(Row("", ""))  # not in the table: nobody promises it


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_in_the_midst_of_the_commit(file: File, soak: Soak) -> None:
    row = file.row("a process killed within COMMIT")
    unit = (FRAME if file.written_ahead else PAGE) // soak.times(short=1, long=8)
    for way in WAYS[: soak.times(short=2, long=len(WAYS))]:
        before = file.verify(row)
        died = 0
        while dies_writing(file, way, IN_A_PAGE + unit * died):
            died += 1
            row.injected += 1
            file.verify(row)
        assert died
        assert file.verify(row) == before + 1  # of the last, who wrote no further than that
        soak.progress(f"{file.column}: killed at {died} places of a COMMIT, {way}")


def dies_writing(file: File, way: str, place: int) -> bool:
    """Let a process commit a change, unless it comes to this place; return whether it has."""
    die = DieWriting(place, file.writes_first if file.written_ahead else None)
    with started(change_once, *file.whose(), way, die) as child:
        code = child.ended()
    assert code in {0, -signal.SIGXFSZ}
    return code != 0


def marks_in(file: File) -> list[tuple[int, int]]:
    with contextlib.closing(sqlite3.connect(file.path)) as connection:
        return connection.execute("SELECT attempt, folder_id FROM fl_mark").fetchall()
