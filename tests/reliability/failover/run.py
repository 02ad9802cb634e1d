"""One engine for several servers: MySQL's drivers connect to one host."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, event
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockLost, LockOptions
from tests.reliability import Reliability, Soak
from tests.reliability.faults.afterwards import Found, look_on_disk, pool_is_wrong
from tests.reliability.faults.clients import CLIENTS, Clients
from tests.reliability.faults.leftovers import locks_left
from tests.reliability.faults.model import Base, Folder, Log, fill
from tests.reliability.history.record import Outcome
from tests.support.waits import wait_until

FOR_UPDATE = LockOptions.ForUpdate


def engine_of(urls: Sequence[str], takes_writes: str, **options: Any) -> Engine:
    """Return an engine whose connections lead to the first server that takes writes.

    :param takes_writes: a query whose last column says ``ON`` there.
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
# A run in which the server that takes the writes is killed, and another takes its place.
#
# The clients and the verification are those of tests/reliability/faults.

#: Updates that are acknowledged before the server is killed, and again behind that.
SHORT, LONG = 60, 500

#: Folders that no client works on: of a session that is about to flush, and of one that is about to commit.
TO_FLUSH, TO_COMMIT = 5, 6


class Servers(ABC):
    """Servers with the same rows, one of which takes the writes.

    :cvar fault: what is injected, for the table.
    :cvar database: its name in the table, and for ``--databases``.
    :cvar program: its name for ``SA_DOCLOCK_TEST_REQUIRE``.
    """

    fault: ClassVar[str]
    database: ClassVar[str]
    program: ClassVar[str]

    @classmethod
    @abstractmethod
    def started(cls) -> AbstractContextManager[Servers]:
        """Start them, and stop in the end what is left.

        :raises UnavailableError: this machine cannot have them.
        """

    @abstractmethod
    def engine(self, **options: Any) -> Engine:
        """Return an engine whose connections lead to the server that takes the writes."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the server that takes the writes by SIGKILL; it does not come back."""

    def promote(self) -> None:  # noqa: B027  # servers that elect one themselves leave it so
        """Have another one take the writes."""

    @abstractmethod
    def left(self) -> Sequence[Engine]:
        """Return an engine without a pool for each that is left, which shows all that is committed.

        The first one takes the writes.
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
    saved = sum(each.acknowledged for each in unknown)  # which the verification has found out
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

    :param pid_file: a query for what its file says, or for the path of that file.
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
    """Wait until so many updates are; fail where none is for long."""
    while (now := _acknowledged(log)) < acknowledged:
        wait_until(partial(_more_than, log, now))


def _more_than(log: Log, acknowledged: int) -> bool:
    return _acknowledged(log) > acknowledged


def _acknowledged(log: Log) -> int:
    return sum(attempt.acknowledged for attempt in log.updates())


@contextmanager
def _locks_at_the_dead_server(engine: Engine) -> Iterator[Callable[[], None]]:
    """Take locks before the server is killed; the function says that nobody believes in them."""
    factory = sessionmaker(engine, class_=LockingSession)
    with factory() as to_flush, factory() as to_commit:
        one = to_flush.get_one_entity(Folder, TO_FLUSH, FOR_UPDATE)
        to_commit.get_one_entity(Folder, TO_COMMIT, FOR_UPDATE).total = 1
        to_commit.flush()

        def look_at_locks() -> None:
            with factory() as other:
                for folder in (TO_FLUSH, TO_COMMIT):  # the server that is there now knows no lock
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
    """Return what was found on all that are left; fail at once for what is no matter of rows."""
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
