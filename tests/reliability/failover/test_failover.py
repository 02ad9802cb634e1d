"""The server that takes the writes is killed, and another takes its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.pool import NullPool

from lab.running.workers import check_required, note_skipped
from lab.servers import galera, group_replication
from lab.servers.find import start_private
from lab.servers.model import UnavailableError
from lab.servers.standby import hot_standby
from tests.reliability import Reliability, Soak
from tests.reliability.failover.run import Servers, engine_of, kill_process, survives
from tests.reliability.soaked import SEVERAL
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.soak]


# --------------------------------------------------------------------------------------------------
# The servers that each of these tests starts for itself; or one line that says loudly why not.


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Callable[[type[Servers]], Servers]]:
    """Return a function that starts servers; they are stopped in the end."""
    with ExitStack() as stack:

        def start_servers(kind: type[Servers]) -> Servers:
            if kind.database not in request.config.getoption("databases").split(","):
                pytest.skip(f"--databases leaves {kind.database} out")
            try:
                return stack.enter_context(kind.started())
            except UnavailableError as exc:
                check_required(kind.program, str(exc))
                note_skipped(request.config, f"FAILOVER, {kind.program}", str(exc))
                pytest.skip(f"no {kind.program}: {exc}")

        yield start_servers


# --------------------------------------------------------------------------------------------------
# The primary is killed in the middle of a run, and its synchronous standby promoted.
#
# Clients come back by a URL that names both.


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


# --------------------------------------------------------------------------------------------------
# A node of a Galera cluster is killed in the middle of a run; all clients go on at another.
#
# Three nodes: of two, the one that is left has no majority, and takes no writes.  All clients work on the
# same node at a time, where locks are as on one server.

TAKES_WRITES = "SHOW STATUS LIKE 'wsrep_ready'"
# A read waits until the node has applied what was committed on the other ones before.
CAUGHT_UP = {"connect_timeout": 5, "init_command": "SET SESSION wsrep_sync_wait = 1"}


class Galera(Servers):
    fault = f"{SEVERAL}: Galera, three nodes"
    database = "mariadb"
    program = "galera"

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Galera]:
        cluster = galera.start(3, patient=False)
        try:
            yield cls([node.url for node in cluster.nodes])
        finally:
            cluster.stop()

    def engine(self, **options: Any) -> Engine:
        return engine_of(self._urls, TAKES_WRITES, connect_args=CAUGHT_UP, **options)

    def kill(self) -> None:
        kill_process(_direct_galera(self._urls[0]), "SELECT @@pid_file")

    def left(self) -> Sequence[Engine]:
        return [_direct_galera(url) for url in self._urls[1:]]


def _direct_galera(url: str) -> Engine:
    return sa.create_engine(url, poolclass=NullPool, connect_args=CAUGHT_UP)


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
def test_nothing_that_was_acknowledged_is_lost_galera(
    start: Callable[[type[Servers]], Servers], soak: Soak, reliability: Reliability
) -> None:
    survives(start(Galera), soak, reliability)


# --------------------------------------------------------------------------------------------------
# The primary of a group of MySQL servers is killed in the middle of a run; the group elects another.
#
# Three members: the last of two stays read-only.

TAKES_WRITES_GROUP_REPLICATION = (
    "SELECT IF(@@super_read_only, 'OFF', 'ON')"  # it is set on all but the primary
)


class Group(Servers):
    fault = f"{SEVERAL}: Group Replication, three members"
    database = "mysql"
    program = "group-replication"

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Group]:
        group = group_replication.start()
        try:
            yield cls([member.url for member in group.nodes])
        finally:
            group.stop()

    def engine(self, **options: Any) -> Engine:
        connect = {"connect_timeout": 5}
        return engine_of(
            self._urls, TAKES_WRITES_GROUP_REPLICATION, connect_args=connect, **options
        )

    def kill(self) -> None:
        kill_process(_direct_group_replication(self._urls[0]), "SELECT @@pid_file")

    def left(self) -> Sequence[Engine]:
        return sorted(map(_direct_group_replication, self._urls[1:]), key=_is_read_only)


def _direct_group_replication(url: str) -> Engine:
    """Return an engine whose reads wait for all that was committed on the other members before."""
    waits = {"init_command": "SET SESSION group_replication_consistency = 'BEFORE'"}
    return sa.create_engine(url, poolclass=NullPool, connect_args=waits)


def _is_read_only(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.exec_driver_sql("SELECT @@super_read_only").scalar())


def test_nothing_that_was_acknowledged_is_lost_group_replication(
    start: Callable[[type[Servers]], Servers], soak: Soak, reliability: Reliability
) -> None:
    survives(start(Group), soak, reliability)
