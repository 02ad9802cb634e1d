"""hold_limit on each version of PostgreSQL, with each driver: a stopped process loses its lock."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping

import pytest
import sqlalchemy as sa

from lab.running.workers import check_required, note_skipped
from lab.servers import Server, UnavailableError, start_private
from lab.servers.postgresql_versions import VERSIONS
from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.held_locks.test_stopped_process import (
    LIMIT,
    started,
    stop_with_lock,
    wake,
)
from tests.integration.locking.steps import soon_free
from tests.support.databases import Database
from tests.support.models import Base, Line, Order, refill
from tests.support.waits import wait_until

pytestmark = [
    *(pytest.mark.slow, pytest.mark.exhaustive),
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="there is no SIGSTOP"),
]

DRIVERS = ("psycopg", "psycopg_async", "psycopg2", "pg8000", "asyncpg")
_WAITS = sa.text("SELECT count(*) FROM pg_stat_activity WHERE pg_blocking_pids(pid) <> '{}'")


@pytest.fixture(scope="module")
def started_servers() -> Iterator[dict[str, Server]]:
    """Keep the servers until the last test of this file: to start one takes longer than a test."""
    kept: dict[str, Server] = {}
    yield kept
    for server in kept.values():
        server.stop()


@pytest.fixture
def documents(
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


#: What a way waits for, held by another session.
WAITS_FOR: Mapping[str, type[Base]] = {"lock": Order, "lock and flush many": Line}


@pytest.mark.parametrize("way", WAITS_FOR)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("documents", VERSIONS, indirect=True)
def test_its_lock_goes_to_another(documents: Database, driver: str, way: str) -> None:
    """It has waited for the last answer: so its driver had none yet when it had sent all."""
    url = sa.make_url(documents.url).set(drivername=f"postgresql+{driver}")
    engine = documents.engine()
    with engine.begin() as connection:
        refill(connection)
    with LockingSession(engine) as session:
        session.get_one_entity(WAITS_FOR[way], 1, LockOptions.ForUpdate)
        with started(url.render_as_string(hide_password=False), LIMIT, way) as process:
            wait_until(lambda: is_waited_for(documents))
            session.rollback()
            stop_with_lock(process)
            assert soon_free(session)  # while the process stands still
            assert wake(process) == "lost"
        assert session.get_one(Order, 1).total == 30


def is_waited_for(documents: Database) -> bool:
    """Return whether a session of the server waits for another."""
    with documents.poller().connect() as connection:
        return bool(connection.execute(_WAITS).scalar_one())
