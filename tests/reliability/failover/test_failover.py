"""One engine for several servers: MySQL's drivers connect to one host."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, event
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from lab.running.workers import check_required, note_skipped
from lab.servers import galera, group_replication
from lab.servers.find import start_private
from lab.servers.model import UnavailableError
from lab.servers.standby import hot_standby
from sa_doclock import LockingSession, LockLost, LockOptions
from tests.reliability import Reliability, Soak
from tests.reliability.faults.afterwards import Found, locks_left, look_on_disk, pool_is_wrong
from tests.reliability.faults.clients import CLIENTS, Clients
from tests.reliability.faults.model import Base, Folder, Log, fill
from tests.reliability.history.record import Outcome
from tests.reliability.record import SEVERAL
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.soak]

FOR_UPDATE = LockOptions.ForUpdate


def engine_of(urls: Sequence[str], takes_writes: str, **options: Any) -> Engine:
    """Return an engine that connects to the first server that accepts writes.

    :param takes_writes: a query whose last column is ``ON`` there.
    """
    engine = sa.create_engine(urls[0], **options)
    addresses = [(url.host, url.port) for url in map(sa.make_url, urls)]

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, _record: Any, arguments: Any, parameters: dict[str, Any]) -> Any:
        refused = dialect.loaded_dbapi.OperationalError("no server takes writes")
        for host, port in addresses:
            there = {**parameters, "host": host, "port": port}
            try:
                connection = dialect.connect(*arguments, **there)
                with connection.cursor() as cursor:
                    cursor.execute(takes_writes)
                    answer = cursor.fetchone()
                if answer and answer[-1] == "ON":
                    return connection
                connection.close()
            except dialect.loaded_dbapi.OperationalError as error:
                refused = error
        raise refused

    return engine


# --------------------------------------------------------------------------------------------------
# A run in which the primary server is killed and another one takes over.
#
# The clients and the verification come from tests/reliability/faults.

#: Acknowledged updates before the server is killed, and again after it.
SHORT, LONG = 60, 500

#: Folders for two sessions that are not clients: one is about to flush, one to commit.
TO_FLUSH, TO_COMMIT = 5, 6


class Servers(ABC):
    """Servers with the same rows, one of which accepts writes.

    :cvar fault: the injected fault, for the table.
    :cvar database: its name in the table, and for ``--databases``.
    :cvar program: its name for ``SA_DOCLOCK_TEST_REQUIRE``.
    """

    fault: ClassVar[str]
    database: ClassVar[str]
    program: ClassVar[str]

    @classmethod
    @abstractmethod
    def started(cls) -> AbstractContextManager[Servers]:
        """Start the servers, and stop the remaining ones at the end.

        :raises UnavailableError: this machine cannot run them.
        """

    @abstractmethod
    def engine(self, **options: Any) -> Engine:
        """Return an engine that connects to the server that accepts writes."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the server that accepts writes with SIGKILL; it does not come back."""

    def promote(self) -> None:  # noqa: B027  # servers that elect one themselves leave it so
        """Make another server accept writes."""

    @abstractmethod
    def left(self) -> Sequence[Engine]:
        """Return an engine without a pool for each remaining server, which shows all commits.

        The first engine's server accepts writes.
        """


def survives(servers: Servers, soak: Soak, reliability: Reliability) -> None:
    """Kill it while clients work, and verify everything."""
    engine = servers.engine(pool_size=CLIENTS + 2, max_overflow=0, pool_pre_ping=True)
    _make_folders(engine)
    log = Log()
    clients = Clients(engine, log, seed=1)
    updates = soak.times(short=SHORT, long=LONG)
    with _locks_at_the_dead_server(engine) as look_at_locks, log.listening(engine):
        try:
            with clients.at_work():
                _wait_for(log, updates)
                servers.kill()
                wait_until(lambda: log.errors)
                before = _acknowledged(log)
                servers.promote()
                _wait_for(log, before + updates)
        finally:
            clients.join()
        look_at_locks()
    unknown = [each for each in log.updates() if each.outcome is Outcome.UNKNOWN]
    found = _verified(servers, engine, log)
    saved = sum(each.acknowledged for each in unknown)  # the verification found this out
    row = reliability.row(servers.fault, servers.database)
    row.injected += 1
    row.acknowledged += found.acknowledged
    row.lost += len(found.lost)
    row.inconsistent += len(found.inconsistent)
    row.errors += log.errors
    row.note = f"{len(unknown)} outcomes unknown, {saved} of them saved"
    assert not found.lost, "\n".join(found.lost)
    assert not found.inconsistent, "\n".join(found.inconsistent)
    engine.dispose()


def kill_process(engine: Engine, pid_file: str) -> None:
    """Kill a server of this machine.

    :param pid_file: a query for the contents of its PID file, or for the path of that file.
    """
    with engine.connect() as connection:
        reported = str(connection.exec_driver_sql(pid_file).scalar_one())
    if reported.startswith("/"):
        reported = Path(reported).read_text(encoding="ascii")
    os.kill(int(reported.split()[0]), signal.SIGKILL)


def _make_folders(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        fill(connection)
        more = [{"id": folder, "total": 0, "writer": 0} for folder in (TO_FLUSH, TO_COMMIT)]
        connection.execute(sa.insert(Folder), more)


def _wait_for(log: Log, acknowledged: int) -> None:
    """Wait for this number of updates; fail if there is none for a long time."""
    while (now := _acknowledged(log)) < acknowledged:
        wait_until(partial(_more_than, log, now))


def _more_than(log: Log, acknowledged: int) -> bool:
    return _acknowledged(log) > acknowledged


def _acknowledged(log: Log) -> int:
    return sum(attempt.acknowledged for attempt in log.updates())


@contextmanager
def _locks_at_the_dead_server(engine: Engine) -> Iterator[Callable[[], None]]:
    """Take locks before the server is killed; the returned function asserts that no session relies on them."""
    factory = sessionmaker(engine, class_=LockingSession)
    with factory() as to_flush, factory() as to_commit:
        one = to_flush.get_one_entity(Folder, TO_FLUSH, FOR_UPDATE)
        to_commit.get_one_entity(Folder, TO_COMMIT, FOR_UPDATE).total = 1
        to_commit.flush()

        def look_at_locks() -> None:
            with factory() as other:
                for folder in (TO_FLUSH, TO_COMMIT):  # the new server knows no lock
                    found = other.get_one_entity(Folder, folder, FOR_UPDATE | LockOptions.NoWait)
                    assert found.total == 0
            one.total = 1
            with pytest.raises(LockLost):
                to_flush.save_changes()
            with pytest.raises((LockLost, sa.exc.DBAPIError)):
                to_commit.commit()
            for session in (to_flush, to_commit):
                assert not session.held_locks
                session.rollback()
                assert session.get_one_entity(Folder, TO_FLUSH, FOR_UPDATE).total == 0
                assert session.get_one_entity(Folder, TO_COMMIT, FOR_UPDATE).total == 0
                session.rollback()

        yield look_at_locks


def _verified(servers: Servers, engine: Engine, log: Log) -> Found:
    """Return the faults on all remaining servers; fail at once for faults other than rows."""
    left = servers.left()
    wrong = [
        *(f"left behind: {what}" for what in locks_left(left[0])),
        *pool_is_wrong(engine, left[0]),
        *("no error for a client: " + "".join(format_exception(e)) for e in log.foreign),
    ]
    assert not wrong, "\n".join(wrong)
    found = []
    for one in left:
        with one.connect() as connection:
            found.append(look_on_disk(connection, log))
    lost = [what for one in found for what in one.lost]
    return Found(found[0].acknowledged, lost, [what for one in found for what in one.inconsistent])


# --------------------------------------------------------------------------------------------------
# The primary server is killed, and another one takes over.

# --------------------------------------------------------------------------------------------------
# The servers that each of these tests starts for itself, or a prominent line that says why
# they are missing.


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Callable[[type[Servers]], Servers]]:
    """Return a function that starts servers; the fixture stops them at the end."""
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
# The primary is killed in the middle of a run, and its synchronous standby is promoted.
#
# Clients reconnect with a URL that names both.


class Pair(Servers):
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
        """Make a commit return only after the standby wrote it to disk."""
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
# A Galera node is killed in the middle of a run; all clients continue on another.
#
# Three nodes: with two, the survivor has no majority and rejects writes.  All clients use the
# same node at a time, where locks work as on one server.

TAKES_WRITES = "SHOW STATUS LIKE 'wsrep_ready'"
# A read waits until the node applies the other nodes' earlier commits.
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
    "SELECT IF(@@super_read_only, 'OFF', 'ON')"  # set on every member except the primary
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
    """Return an engine whose reads wait for all earlier commits on the other members."""
    waits = {"init_command": "SET SESSION group_replication_consistency = 'BEFORE'"}
    return sa.create_engine(url, poolclass=NullPool, connect_args=waits)


def _is_read_only(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.exec_driver_sql("SELECT @@super_read_only").scalar())


def test_nothing_that_was_acknowledged_is_lost_group_replication(
    start: Callable[[type[Servers]], Servers], soak: Soak, reliability: Reliability
) -> None:
    survives(start(Group), soak, reliability)
