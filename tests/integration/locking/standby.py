"""A streaming standby of the PostgreSQL server that the tests run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from lab.running.workers import check_required, note_skipped
from lab.servers.model import UnavailableError
from lab.servers.standby import hot_standby
from tests.support.databases import Database
from tests.support.waits import wait_until


class Replication:
    """A primary, and a standby that streams from it."""

    def __init__(self, primary: sa.Engine, standby: sa.Engine) -> None:
        self.primary = primary
        self.standby = standby
        self._observer = standby.execution_options(isolation_level="AUTOCOMMIT")

    def catch_up(self) -> None:
        """Return when the standby has replayed what the primary has flushed: it is sent no more."""
        with self.primary.connect() as connection:
            position = connection.exec_driver_sql(
                "SELECT pg_current_wal_flush_lsn()::text"
            ).scalar_one()
        self.wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{position}'")

    def set(self, name: str, value: str) -> None:
        """Change a setting of the standby."""
        with self._observer.connect() as connection:
            connection.exec_driver_sql(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        self.wait_until(f"SELECT setting = '{value}' FROM pg_settings WHERE name = '{name}'")

    def wait_until(self, question: str) -> None:
        """Ask the standby until it says yes."""
        with self._observer.connect() as connection:
            wait_until(lambda: connection.exec_driver_sql(question).scalar())


@pytest.fixture(scope="module")
def replications() -> Iterator[dict[str, Replication]]:
    """Keep a standby for the tests of a file: to copy a server takes longer than a test."""
    with ExitStack() as stack:
        yield _Kept(stack)


class _Kept(dict[str, Replication]):
    """The standbys, made when they are asked for, by the URLs of their primaries."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, url: str) -> Replication:
        standby = sa.create_engine(self._stack.enter_context(hot_standby(url)))
        primary = sa.create_engine(url)
        self._stack.callback(standby.dispose)
        self._stack.callback(primary.dispose)
        # What it removes, the standby replays only when no snapshot there needs it any more.
        _change(primary, "SET autovacuum = off")
        self._stack.callback(_change, primary, "RESET autovacuum")
        self[url] = Replication(primary, standby)
        return self[url]


def _change(primary: sa.Engine, setting: str) -> None:
    with primary.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql(f"ALTER SYSTEM {setting}")
        connection.exec_driver_sql("SELECT pg_reload_conf()")


@pytest.fixture
def replication(
    request: pytest.FixtureRequest,
    documents: Database,
    replications: dict[str, Replication],
) -> Replication:
    """Give the test a standby that has the rows of tests/support/models.py by now."""
    if documents.pooled:
        pytest.skip("a standby has no pooler of its own here")
    try:
        found = replications[documents.url]
    except UnavailableError as exc:
        check_required("standby", str(exc))
        note_skipped(request.config, "STANDBY", str(exc))
        pytest.skip(f"no standby of this server: {exc}")
    found.wait_until("SELECT status = 'streaming' FROM pg_stat_wal_receiver")
    found.catch_up()
    return found
