"""Forks in the midst of something else than one session's lock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from tests.integration.forks import others
from tests.support.databases import Database

PATIENCE = 240

# A hook of another library comes before ours, and collects what was local to the parent's threads.
PROGRAM = """
import gc, os, sys

os.register_at_fork(after_in_child=gc.collect)
from tests.integration.forks.others import main

main(*sys.argv[1:])
"""


def run(database: Database, *cases: Callable[[sa.Engine], None]) -> None:
    """Run the cases in one process, with the database's URL."""
    names = [case.__name__ for case in cases]
    program = [sys.executable, "-c", PROGRAM, database.url, *names]
    found = subprocess.run(program, capture_output=True, check=False, text=True, timeout=PATIENCE)
    assert found.stdout.splitlines() == [*names, "ok"], f"{found.stdout}\n{found.stderr}"
    assert not found.stderr


@pytest.mark.databases("sqlite", "postgresql")  # on the others with what the child has, below
def test_what_the_parent_has_flushed_and_locked_stays(documents: Database) -> None:
    run(documents, *others.FEW)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_child_has_nothing_of_the_parents(documents: Database) -> None:
    run(documents, *others.ALL)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.not_databases("sqlite")
def test_where_the_child_has_connections_of_its_own(documents: Database) -> None:
    run(documents, *others.SERVERS)


@pytest.mark.databases("postgresql")
def test_what_a_pipeline_keeps(documents: Database) -> None:
    run(documents, others.autoflush_and_pipeline)


@pytest.mark.databases("sqlite")
def test_the_file_is_closed_to_the_child(documents: Database) -> None:
    run(documents, others.closed_file)
