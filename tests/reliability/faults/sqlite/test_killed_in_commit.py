"""A process is killed at a certain point of its commit, from before it to behind it."""

from __future__ import annotations

import contextlib
import signal
import sqlite3

import pytest

from tests.reliability import Row, Soak
from tests.reliability.faults.sqlite.conftest import File
from tests.reliability.faults.sqlite.processes import started
from tests.reliability.faults.sqlite.worker import (
    WAYS,
    DieWriting,
    change_and_be_silent,
    change_once,
    hold_much,
    hold_much_without_a_journal,
    stop_there,
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.databases("sqlite")]

PAGE = 4096
FRAME = PAGE + 24  # of the write-ahead log: a page and its header
IN_A_PAGE = 100


def commit_something(file: File) -> None:
    """Let a process make a change, and end."""
    with started(change_once, *file.whose(), "get_entity", no_further) as child:
        assert child.ended() == 0


def no_further(_: object) -> None: ...


@pytest.mark.slow
def test_before_the_commit_is_sent(file: File) -> None:
    commit_something(file)
    with started(change_once, *file.whose(), "get_documents", stop_there) as child:
        child.wait_for_reports()
    row = file.row("a process killed before its COMMIT")
    row.injected += 1
    assert file.verify(row) == 1


@pytest.mark.slow
def test_after_the_commit_and_before_anybody_knows(file: File) -> None:
    commit_something(file)
    with started(change_and_be_silent, *file.whose()) as child:
        child.wait_for_reports()
    row = file.row("a process killed behind its COMMIT")
    row.injected += 1
    assert file.verify(row) == 1
    assert len(marks_in(file)) == 3  # of the first a folder, of the second two


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


def test_without_a_journal_it_is_found_broken(file: File) -> None:
    commit_something(file)
    with started(hold_much_without_a_journal, *file.whose()) as child:
        child.wait_for_reports()
    with pytest.raises(AssertionError, match=r"integrity_check|total|never to be"):
        file.verify(Row("", ""))  # not in the table: nobody promises it


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
