"""The primary is killed in the middle of a run, and its synchronous standby promoted.

Clients come back by a URL that names both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.pool import NullPool

from lab.servers.find import start_private
from lab.servers.standby import hot_standby
from tests.reliability import Reliability, Soak
from tests.reliability.failover.run import Servers, kill_process, survives
from tests.reliability.soaked import SEVERAL
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.soak]


class Pair(Servers):
    """A primary and its synchronous standby."""

    fault = f"{SEVERAL}: PostgreSQL, standby promoted"
    database = "postgresql"
    program = "standby"

    def __init__(self, primary: str, standby: str) -> None:
        self._primary, self._standby = _direct(primary), _direct(standby)

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Pair]:
        server = start_private("postgresql")
        try:
            with hot_standby(server.url) as standby:
                pair = cls(server.url, standby)
                pair._wait_for_each_commit()
                yield pair
        finally:
            server.stop()

    def engine(self, **options: Any) -> Engine:
        one, two = self._primary.url, self._standby.url
        both = [f"{url.host}:{url.port}" for url in (one, two)]
        query = {"host": both, "target_session_attrs": "read-write", "connect_timeout": "5"}
        return sa.create_engine(one.set(host=None, port=None, query=query), **options)

    def kill(self) -> None:
        kill_process(self._primary, "SELECT pg_read_file('postmaster.pid')")

    def promote(self) -> None:
        with self._standby.connect() as connection:
            assert connection.exec_driver_sql("SELECT pg_promote()").scalar_one()

    def left(self) -> Sequence[Engine]:
        return [self._standby]

    def _wait_for_each_commit(self) -> None:
        """Have a commit return when the standby has it on disk too."""
        administrator = self._primary.execution_options(isolation_level="AUTOCOMMIT")
        with administrator.connect() as connection:
            connection.exec_driver_sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
            query = "SELECT sync_state FROM pg_stat_replication"
            wait_until(lambda: connection.exec_driver_sql(query).scalar() == "sync")


def _direct(url: str) -> Engine:
    return sa.create_engine(url, poolclass=NullPool)


def test_nothing_that_was_acknowledged_is_lost(
    start: Callable[[type[Servers]], Servers], soak: Soak, reliability: Reliability
) -> None:
    survives(start(Pair), soak, reliability)
