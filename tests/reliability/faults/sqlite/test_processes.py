"""Processes that change the same file are killed at any moment."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.reliability import Reliability, Row, Soak
from tests.reliability.faults.afterwards import Found, locks_left, look_on_disk
from tests.reliability.faults.model import FOLDERS, Base, Folder, Log, Mark, fill
from tests.reliability.faults.sqlite.worker import (
    WAYS,
    DieWriting,
    change_and_be_silent,
    change_folders,
    change_once,
    hold,
    hold_much,
    hold_much_without_a_journal,
    read_logs,
    stop_there,
)
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

pytestmark = [pytest.mark.soak, pytest.mark.databases("sqlite")]

# --------------------------------------------------------------------------------------------------
# Processes killed while they write a SQLite file, and the state that the others then find.


def verify(path: Path, log: Log, row: Row) -> Found:
    """Fail if anything is wrong; the table records the findings in any case.

    Nobody else has the file open: the first statement rolls back a hot journal, and would be
    refused if anything were locked.
    """
    wrong = _damage(path)
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with engine.connect() as connection:
        found = look_on_disk(connection, log)
        there = set(connection.scalars(sa.select(Mark.attempt)))
    meant = {attempt.number for attempt in log.attempts}
    found.inconsistent += [f"attempt {one} was never to be committed" for one in there - meant]
    row.lost += len(found.lost)
    row.inconsistent += len(found.inconsistent)
    wrong += [*found.lost, *found.inconsistent, *locks_left(engine), *map(repr, log.foreign)]
    assert not wrong, "\n".join(wrong)
    return found


def _damage(path: Path) -> list[str]:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    with contextlib.closing(connection):
        try:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("PRAGMA user_version = 1")  # a write, which needs its own journal
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            return [f"left behind: {error}"]
        (reported,) = connection.execute("PRAGMA integrity_check").fetchone()
        wrong = [] if reported == "ok" else [f"integrity_check: {reported}"]
        wrong += [
            f"foreign_key_check: {row}" for row in connection.execute("PRAGMA foreign_key_check")
        ]
    if journal_of(path).exists():
        wrong.append("the journal is still there")
    return wrong


def journal_of(path: Path) -> Path:
    """The rollback journal, which exists while a transaction writes, or after it was killed."""
    return path.with_name(f"{path.name}-journal")


# --------------------------------------------------------------------------------------------------
# A SQLite file with the folders in it, in each journal mode.


@dataclass
class File:
    """The file, and the logs of all processes that wrote to it."""

    path: Path
    column: str
    reliability: Reliability
    logs: list[Path] = field(default_factory=list)
    _acknowledged: int = 0  # and counted
    _errors: Counter[str] = field(default_factory=Counter)

    @property
    def written_ahead(self) -> bool:
        return self.column == "sqlite"

    @property
    def writes_first(self) -> Path:
        """The file next to the database that a COMMIT writes first."""
        return self.path.with_name(f"{self.path.name}-wal") if self.written_ahead else self.journal

    @property
    def journal(self) -> Path:
        return journal_of(self.path)

    def whose(self) -> tuple[Path, Path, int]:
        """Return the first arguments of a new process: file, log, number."""
        number = len(self.logs) + 1
        self.logs.append(self.path.with_name(f"{number}.log"))
        self.logs[-1].touch()
        return self.path, self.logs[-1], number

    def row(self, fault: str) -> Row:
        return self.reliability.row(fault, self.column)

    def verify(self, row: Row) -> int:
        """Compare the file with the logs; return the number of acknowledged updates."""
        log = read_logs(self.logs)
        found = verify(self.path, log, row)
        row.acknowledged += found.acknowledged - self._acknowledged
        row.errors += log.errors - self._errors
        self._acknowledged, self._errors = found.acknowledged, log.errors
        return found.acknowledged


@pytest.fixture
def file(database: Database, reliability: Reliability) -> File:
    engine = database.engine()
    database.create(Base.metadata)
    with engine.begin() as connection:
        fill(connection)
    engine.dispose()
    path = sa.make_url(database.url).database
    assert path is not None
    return File(Path(path), database.column, reliability)


# --------------------------------------------------------------------------------------------------
# Starts child processes, and kills them.

# They fork from one process, which imported everything and did nothing else.
_START = multiprocessing.get_context("forkserver")
_START.set_forkserver_preload(["tests.reliability.faults.sqlite.worker"])


@dataclass
class Child:
    """A process, and the pipe on which it reports its progress."""

    process: BaseProcess
    pipe: Pipe

    def wait_for_reports(self, times: int = 1) -> None:
        """Wait for this number of reports."""
        for _ in range(times):
            assert self.pipe.poll(PATIENCE), f"{self.process} says nothing"
            self.pipe.recv_bytes()

    def kill(self) -> None:
        """Kill it at once, and wait for its end."""
        assert self.process.pid is not None
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)
        self.ended()

    def ended(self) -> int | None:
        """Wait for its end; return its exit code, negative for a signal."""
        self.process.join(PATIENCE)
        return self.process.exitcode


@contextmanager
def started(main: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """Start a process; kill it at the end if it is still alive."""
    ours, theirs = _START.Pipe()
    process = _START.Process(target=main, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    child = Child(process, ours)
    try:
        yield child
    finally:
        child.kill()
        ours.close()


def wait_a_moment(chance: random.Random) -> None:
    """Pause for 0 to 3 ms, so that the kill hits any point of the commit, or just after it."""
    end = time.perf_counter() + chance.random() * 0.003
    while time.perf_counter() < end:
        pass


# --------------------------------------------------------------------------------------------------
# Processes that change the same file are killed at any moment.


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
            other.wait_for_reports(2)  # the other process continues unhindered
            wait_a_moment(chance)
        row.injected += 2
        acknowledged = file.verify(row)
        if number % 20 == 0:
            soak.progress(
                f"{file.column}: {row.injected} processes killed, {acknowledged} updates there"
            )
    assert acknowledged > 0


# --------------------------------------------------------------------------------------------------
# A process that holds the file is killed: its lock goes with it.

ForUpdate = LockOptions.ForUpdate
Enter = Callable[[str], Actor[LockingSession]]


class Elsewhere:
    """An actor in another process, with the members that wait_until_blocked() needs of a holder."""

    def connection_ids(self) -> frozenset[int]:
        return frozenset({0})


def add_one(session: LockingSession) -> int:
    """Lock a folder, however long it takes, and change it; return its old value."""
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
# A process is killed at a chosen point of its commit, from before it to after it.

PAGE = 4096
FRAME = PAGE + 24  # of the write-ahead log: a page and its header
IN_A_PAGE = 100


def commit_something(file: File) -> None:
    """Run a process that makes a change and ends."""
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
    assert len(marks_in(file)) == 3  # one folder by the first, two by the second


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_when_a_part_is_in_the_file_already(file: File) -> None:
    """The cache was too small: in journal mode the file itself is wrong until it is repaired."""
    commit_something(file)
    with started(hold_much, *file.whose()) as child:
        child.wait_for_reports()
    written = file.writes_first if file.written_ahead else file.path
    assert written.stat().st_size > 20 * PAGE
    assert file.writes_first.stat().st_size > PAGE  # in journal mode: the old pages, hot
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
        file.verify(Row("", ""))  # not in the table: SQLite does not promise it


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
        assert file.verify(row) == before + 1  # by the last process, which never reached its place
        soak.progress(f"{file.column}: killed at {died} places of a COMMIT, {way}")


def dies_writing(file: File, way: str, place: int) -> bool:
    """Run a process that commits a change unless it reaches this place; return whether it does."""
    die = DieWriting(place, file.writes_first if file.written_ahead else None)
    with started(change_once, *file.whose(), way, die) as child:
        code = child.ended()
    assert code in {0, -signal.SIGXFSZ}
    return code != 0


def marks_in(file: File) -> list[tuple[int, int]]:
    with contextlib.closing(sqlite3.connect(file.path)) as connection:
        return connection.execute("SELECT attempt, folder_id FROM fl_mark").fetchall()
