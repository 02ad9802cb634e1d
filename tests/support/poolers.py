"""The poolers of a test run; each starts when a test first needs it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn

import pytest

from lab.running.workers import check_required, note_skipped
from lab.servers import Server, poolers
from lab.servers.find import start_private
from lab.servers.model import UnavailableError
from lab.servers.standby import hot_standby
from tests.support.databases import PGPOOL, POOLERS

FOUND = pytest.StashKey["Poolers"]()

#: The programs, and a driver, by their names in SA_DOCLOCK_TEST_REQUIRE.
PROGRAMS = ("pgbouncer", PGPOOL, "psycopg2")

#: A test that changes a connection's settings. In transaction pooling, another test gets this
#: connection next.
SETS_CONNECTION = pytest.mark.not_databases("pgbouncer-transaction")

#: A test that changes settings of a connection that each pooler passes on, or ends a connection
#: by its id.
ENDS_CONNECTION = pytest.mark.not_databases(*POOLERS)

#: A test that counts round trips. pgpool-II answers each statement of a pipeline separately, before the
#: last one arrives. A client that sends several at once does not wait, but the answer looks like a trip.
COUNTS_ROUND_TRIPS = pytest.mark.not_databases(PGPOOL)

#: The settings for pgpool-II from docs/poolers.md: it sends every statement for this database to
#: the primary.
TO_PRIMARY = {"database_redirect_preference_list": "doclock:primary"}


@dataclass(frozen=True)
class Pooled:
    """A pooler, and the URLs that bypass it."""

    server: Server
    direct_url: str
    standby_url: str = ""


def skip_without(config: pytest.Config, program: str, reason: str) -> NoReturn:
    """Skip a test because this program is missing; fail it if SA_DOCLOCK_TEST_REQUIRE names the program."""
    check_required(program, reason)
    note_skipped(config, f"POOLER {program}", reason)
    pytest.skip(f"no {program}: {reason}")


def skip_server_cursor(column: str) -> None:
    """Skip a test of psycopg's server-side cursors behind pgpool-II, where they fail: docs/poolers.md."""
    if column == PGPOOL:
        pytest.skip("pgpool-II fails at Describe of a cursor: see docs/poolers.md")


class Poolers:
    """The poolers, by matrix column: PgBouncer in front of the server of the run.

    pgpool-II has separate servers, a primary and a standby.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._found: dict[str, Pooled | str] = {}
        self._stack = ExitStack()

    def find(self, column: str, url: str) -> Pooled:
        """Return this pooler in front of the server at this URL; skip the test if the pooler is not available."""
        if column not in self._found:
            try:
                self._found[column] = self._start(column, url)
            except UnavailableError as exc:
                self._found[column] = str(exc)
        found = self._found[column]
        if isinstance(found, Pooled):
            return found
        skip_without(self._config, column.partition("-")[0], found)

    def stop(self) -> None:
        self._stack.close()

    def _start(self, column: str, url: str) -> Pooled:
        if column == PGPOOL:
            return self._start_pgpool()
        server = poolers.start_pgbouncer(url, column.partition("-")[2])
        self._stack.callback(server.stop)
        return Pooled(server, url)

    def _start_pgpool(self) -> Pooled:
        primary = start_private("postgresql")
        self._stack.callback(primary.stop)
        standby_url = self._stack.enter_context(hot_standby(primary.url))
        server = poolers.start_pgpool(primary.url, standby_url, **TO_PRIMARY)
        self._stack.callback(server.stop)
        return Pooled(server, primary.url, standby_url)
