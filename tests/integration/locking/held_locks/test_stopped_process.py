"""A process is stopped while it holds a lock: the server frees the document, where it can."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from lab.running.workers import check_required, note_skipped
from lab.servers import Server, UnavailableError, start_private
from lab.servers.postgresql_versions import VERSIONS
from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import finds_held, soon_free
from tests.support.databases import PGPOOL, Database
from tests.support.models import Base, Line, Order, refill
from tests.support.waits import wait_until

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="there is no SIGSTOP"),
    pytest.mark.slow,
]


Run = Callable[..., list[Any]]
TOTAL = sa.select(Order.total).where(Order.id == 1)
LIMIT = 1


Process = subprocess.Popen[str]


@contextmanager
def started(url: str, seconds: float, way: str = "lock") -> Iterator[Process]:
    """Start a process that locks order 1 and changes it, without a commit."""
    command = [sys.executable, "-m", "tests.integration.locking.stopped", url, str(seconds), way]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def stop_with_lock(process: Process) -> None:
    """Stop the process as soon as it holds the lock."""
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    os.kill(process.pid, signal.SIGSTOP)


def wake(process: Process) -> str:
    """Let it continue to its commit; return the outcome."""
    assert process.stdin is not None
    assert process.stdout is not None
    os.kill(process.pid, signal.SIGCONT)
    process.stdin.write("commit\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_it_loses_its_lock_and_cannot_commit(
    documents: Database, session: LockingSession, elsewhere: Run
) -> None:
    with started(documents.url, LIMIT) as process:
        stop_with_lock(process)
        assert soon_free(session)  # while the process is stopped
        session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 31
        session.commit()
        if documents.column == PGPOOL:
            return  # it does not notice transaction_timeout, and never answers: docs/poolers.md
        assert wake(process) == "lost"
    assert elsewhere(TOTAL) == [(31,)]


@pytest.mark.databases("sqlite")
def test_by_its_own_clock_it_cannot_commit(
    documents: Database, session: LockingSession, elsewhere: Run
) -> None:
    with started(documents.url, LIMIT) as process:
        stop_with_lock(process)
        since = time.monotonic()
        wait_until(lambda: time.monotonic() > since + LIMIT)
        assert finds_held()(session)  # hold_limit does not promise more there
        assert wake(process) == "lost"
        session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=30).total = 31
        session.commit()
    assert elsewhere(TOTAL) == [(31,)]


def test_one_that_is_not_stopped_for_long_commits(documents: Database, elsewhere: Run) -> None:
    with started(documents.url, 600) as process:
        stop_with_lock(process)
        assert wake(process) == "committed"
    assert elsewhere(TOTAL) == [(1000,)]


# --------------------------------------------------------------------------------------------------
# hold_limit on each PostgreSQL version with each driver: a stopped process loses its lock.

DRIVERS = ("psycopg", "psycopg_async", "psycopg2", "pg8000", "asyncpg")
_WAITS = sa.text("SELECT count(*) FROM pg_stat_activity WHERE pg_blocking_pids(pid) <> '{}'")


@pytest.fixture(scope="module")
def started_servers() -> Iterator[dict[str, Server]]:
    """Keep the servers until the last test of this file: starting one takes longer than a test."""
    kept: dict[str, Server] = {}
    yield kept
    for server in kept.values():
        server.stop()


@pytest.fixture
def documents_each_version(
    request: pytest.FixtureRequest, started_servers: dict[str, Server]
) -> Iterator[Database]:
    """Return a database of this version with the tables of tests/support/models.py."""
    name = f"postgresql-{request.param}"
    try:
        server = started_servers.get(name) or start_private(name)
    except UnavailableError as exc:
        check_required(name, str(exc))
        note_skipped(request.config, name.upper(), str(exc))
        pytest.skip(f"no {name}: {exc}")
    started_servers[name] = server
    found = Database("postgresql", server.url, server.version)
    found.create(Base.metadata)
    yield found
    found.close()


#: The lock that each way waits for; another session holds it.
WAITS_FOR: Mapping[str, type[Base]] = {"lock": Order, "lock and flush many": Line}


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", WAITS_FOR)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("documents_each_version", VERSIONS, indirect=True)
def test_its_lock_goes_to_another(documents_each_version: Database, driver: str, way: str) -> None:
    """It waited for the last answer: so its driver had no answer yet when all was sent."""
    url = sa.make_url(documents_each_version.url).set(drivername=f"postgresql+{driver}")
    engine = documents_each_version.engine()
    with engine.begin() as connection:
        refill(connection)
    with LockingSession(engine) as session:
        session.get_one_entity(WAITS_FOR[way], 1, LockOptions.ForUpdate)
        with started(url.render_as_string(hide_password=False), LIMIT, way) as process:
            wait_until(lambda: is_waited_for(documents_each_version))
            session.rollback()
            stop_with_lock(process)
            assert soon_free(session)  # while the process is stopped
            assert wake(process) == "lost"
        assert session.get_one(Order, 1).total == 30


def is_waited_for(documents: Database) -> bool:
    """Return whether a session of the server waits for another."""
    with documents.poller().connect() as connection:
        return bool(connection.execute(_WAITS).scalar_one())
