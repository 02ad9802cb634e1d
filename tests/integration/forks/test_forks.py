"""A process forks while its session holds a lock: the transaction remains the parent's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.forks import others
from tests.integration.forks.program import CASES
from tests.integration.questions.conftest import ASYNCHRONOUS, DRIVERS, url_of
from tests.integration.timeouts.ways import Wire
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.rows import rows

NOWAIT = LockOptions.ForUpdate | LockOptions.NoWait


class Program:
    """This folder's program, as a process."""

    def __init__(self, url: sa.URL, *cases: str) -> None:
        text = url.render_as_string(hide_password=False)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.forks.program", text, *cases],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read(self, line: str) -> None:
        """Assert that this is the next line."""
        assert self.process.stdout is not None
        found = self.process.stdout.readline().strip()
        if found != line:
            self.process.terminate()
            pytest.fail(f"{found}\n{self.process.stdout.read()}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def running(url: sa.URL, *cases: str) -> Iterator[Program]:
    program = Program(url, *cases)
    with program.process as process:
        try:
            yield program
        finally:
            process.kill()


def check(case: str, program: Program, wire: Wire | None, engine: sa.Engine) -> None:
    """Check that nothing reaches the server while the child runs, and that the parent saves."""
    before = total(engine)
    program.read("locked")
    sent = 0 if wire is None else wire.sent
    program.go_on()
    program.read("status 0")
    if wire is not None and case != "used again":  # it has a separate connection
        assert wire.sent == sent, case
    assert is_locked(engine), case
    program.go_on()
    program.read("committed")
    assert not is_locked(engine), case
    assert total(engine) == before + 10, case
    program.go_on()


def is_locked(engine: sa.Engine) -> bool:
    with LockingSession(engine) as session:
        try:
            session.get_entity(Order, 1, NOWAIT)
        except LockNotAvailable:
            return True
        return False


def total(engine: sa.Engine) -> Any:
    with engine.connect() as connection:
        return connection.scalar(sa.select(Order.total).where(Order.id == 1))


@pytest.mark.slow
@pytest.mark.databases("postgresql", "mysql", "mariadb")
@rows("driver", sorted({driver for drivers in DRIVERS.values() for driver in drivers}))
def test_the_child_sends_nothing(documents: Database, engine: sa.Engine, driver: str) -> None:
    if driver not in DRIVERS[documents.name]:
        return
    given = sa.make_url(documents.url)
    wire = Wire(given.host or "127.0.0.1", given.port or 0)
    given = given.set(host="127.0.0.1", port=wire.port)
    url = url_of(documents, driver, given)
    if driver in ("psycopg", "psycopg2"):
        url = url.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
    if driver in ("pg8000", "asyncpg"):
        url = url.set(query={})
    # The parent's loop does not run in the child.
    cases = [case for case in CASES if driver not in ASYNCHRONOUS or case != "used again"]
    with running(url, *cases) as program:
        for case in cases:
            check(case, program, wire, engine)


@pytest.mark.databases("sqlite")
def test_the_child_leaves_the_file_alone(documents: Database, engine: sa.Engine) -> None:
    # The driver's own close() would roll back, and the child has no connection of its own.
    cases = [case for case in CASES if case not in ("driver", "used again")]
    with running(sa.make_url(documents.url), *cases) as program:
        for case in cases:
            check(case, program, None, engine)


# --------------------------------------------------------------------------------------------------
# Forks in the middle of work other than one session's lock.

PATIENCE = 240

# Another library's hook runs before ours, and collects the locals of the parent's threads.
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


@pytest.mark.databases("sqlite", "postgresql")  # the others run with the child's objects, below
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
