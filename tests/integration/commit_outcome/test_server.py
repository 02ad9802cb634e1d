"""A COMMIT whose server is killed, crashes, or has not finished."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session as PlainSession

from lab.running.workers import check_required
from lab.servers.find import start_private
from lab.servers.model import UnavailableError
from sa_doclock import CommitUnknown, LockingSession, LockLost, LockOptions
from tests.reliability.faults.proxy import Link, Proxy, StatementReset, proxy_to
from tests.support.actors import PATIENCE
from tests.support.models import Base, Customer
from tests.support.waits import wait_until

pytestmark = pytest.mark.slow

ForUpdate = LockOptions.ForUpdate
ONE = random.Random()  # picks the only connection
PID = sa.select(sa.func.pg_backend_pid())


class CommitMet(StatementReset):
    """Calls a function in place of the next COMMIT, and resets its connection."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__("COMMIT")
        self._then = then

    def last(self, link: Link, direction: str, data: bytes) -> bytes | None:
        """Return the last chunk forwarded in this direction; None if it is incomplete."""
        if self.happened or direction != "there" or b"COMMIT" not in data:
            return None
        self._then()
        return super().last(link, direction, data)


class OwnServer:
    """A server for this file, which a test may kill; and the proxy in front of it."""

    def __init__(self, url: str, proxy: Proxy) -> None:
        self.proxy = proxy
        self._direct = sa.create_engine(url, isolation_level="AUTOCOMMIT", pool_size=0)
        self.dispose = self._direct.dispose
        Base.metadata.create_all(self._direct)

    def ask(self, question: str, **values: Any) -> Any:
        with self._direct.connect() as connection:
            return connection.execute(sa.text(question), values).scalar()

    def do(self, *statements: str) -> None:
        with self._direct.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def name(self) -> str:
        with PlainSession(self._direct) as session:
            return session.get_one(Customer, 1).name

    def start_over(self) -> None:
        self.do("DELETE FROM lk_customer", "INSERT INTO lk_customer VALUES (1, 'before')")

    def crash(self, pid: int) -> None:
        """Kill this server process; the server then ends all others, and recovers."""
        # A checkpoint's time has whole seconds: a crash in the server's first second is missed.
        later = "SELECT date_trunc('second', clock_timestamp()) > pg_postmaster_start_time()"
        wait_until(lambda: self.ask(later))
        started = "SELECT pg_stat_get_bgwriter_stat_reset_time()::text"
        before = self.ask(started)
        os.kill(pid, signal.SIGKILL)

        def has_recovered() -> bool:
            try:
                return bool(self.ask(started) != before)
            except DBAPIError:
                self._direct.dispose()
                return False

        wait_until(has_recovered)

    @contextmanager
    def setting(self, name: str, value: str) -> Iterator[None]:
        """Change a server setting for this block."""
        self.do(f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()")
        wait_until(lambda: self.ask(f"SHOW {name}") == value)
        try:
            yield
        finally:
            self.reset(name)

    def reset(self, name: str) -> None:
        self.do(f"ALTER SYSTEM RESET {name}", "SELECT pg_reload_conf()")

    def wait_for_standby(self, pid: int) -> None:
        """Wait until the COMMIT of this process waits for a standby."""
        question = "SELECT wait_event FROM pg_stat_activity WHERE pid = :pid"
        wait_until(lambda: self.ask(question, pid=pid) == "SyncRep")


@pytest.fixture(scope="module")
def own(request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    """Start the server."""
    if "postgresql" not in request.config.getoption("databases").split(","):
        pytest.skip("--databases leaves postgresql out")
    try:
        server = start_private("postgresql")
    except UnavailableError as exc:
        check_required("postgresql", str(exc))
        pytest.skip(f"no server of its own: {exc}")
    try:
        with proxy_to(server.url) as proxy:
            own = OwnServer(server.url, proxy)
            yield own
            own.dispose()
    finally:
        server.stop()


@pytest.fixture
def server(own: OwnServer) -> OwnServer:
    """Return the server with its original row."""
    own.start_over()
    return own


@pytest.fixture
def engine(server: OwnServer) -> Iterator[sa.Engine]:
    """Return the sessions' engine, which connects through the proxy."""
    engine = sa.create_engine(server.proxy.url)
    yield engine
    engine.dispose()


def changed(engine: sa.Engine, **options: Any) -> tuple[LockingSession, int]:
    """Return a session with unsaved changes, and its server process.

    Retries while the server restarts, which takes time on a busy machine.
    """
    session = LockingSession(
        engine, **{"commit_outcome": True, "lock_timeout": PATIENCE, **options}
    )
    session.get_one_entity(Customer, 1, ForUpdate).name = "changed"
    return session, session.connection().scalars(PID).one()


@contextmanager
def committing(session: LockingSession) -> Iterator[Any]:
    """Commit in a thread; yield the future, and wait for it at the end of the block."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(session.commit)
        yield future
        future.exception(PATIENCE)


@pytest.mark.parametrize("how", ["terminated", "killed"])
def test_the_process_is_gone_before_commit(server: OwnServer, engine: sa.Engine, how: str) -> None:
    session, pid = changed(engine)
    session.flush()
    if how == "killed":
        server.crash(pid)
    else:
        server.do(f"SELECT pg_terminate_backend({pid}, 10000)")
    with session, pytest.raises(LockLost, match="did not commit") as caught:
        session.commit()
    assert caught.value.retryable
    assert server.name() == "before"


@pytest.mark.parametrize("how", ["terminated", "killed"])
def test_the_process_is_gone_while_it_commits(
    server: OwnServer, engine: sa.Engine, how: str
) -> None:
    """The transaction is committed locally, waits for its standby, and is visible to no one."""
    session, pid = changed(engine)
    with session, server.setting("synchronous_standby_names", "nobody"):
        with committing(session) as future:
            server.wait_for_standby(pid)
            if how == "killed":
                server.crash(pid)
            else:
                server.do(f"SELECT pg_terminate_backend({pid})")
        assert future.result() is None
    assert server.name() == "changed"


def test_a_commit_that_is_not_done_yet_is_waited_for(server: OwnServer, engine: sa.Engine) -> None:
    called: list[int] = []
    session, pid = changed(engine)
    session.on_commit(lambda: called.append(1))
    asked = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_xact_status%' AND pid <> pg_backend_pid()"
    with session, server.setting("synchronous_standby_names", "nobody"):
        with committing(session) as future:
            server.wait_for_standby(pid)
            server.proxy.harm(lambda link: link.reset(link.client), ONE)
            wait_until(lambda: server.ask(asked) > 0)
            assert not future.done()
            server.reset("synchronous_standby_names")
        assert future.result() is None
    assert called == [1]
    assert server.name() == "changed"


def test_but_no_longer_than_the_lock_timeout(server: OwnServer, engine: sa.Engine) -> None:
    called: list[int] = []
    session, pid = changed(engine, lock_timeout=0.2)
    session.on_commit(lambda: called.append(1))
    with session, server.setting("synchronous_standby_names", "nobody"):
        with committing(session) as future:
            server.wait_for_standby(pid)
            server.proxy.harm(lambda link: link.reset(link.client), ONE)
        with pytest.raises(CommitUnknown, match="look in the database before you run it again"):
            future.result()
    assert called == []
    wait_until(lambda: server.name() == "changed")


def test_an_id_that_a_crash_has_given_to_another_transaction_says_nothing(
    server: OwnServer, engine: sa.Engine
) -> None:
    """The log of the transaction was not on disk, so the next transaction gets its id."""
    with server.setting("wal_writer_delay", "10s"):
        session, pid = changed(engine)
        session.flush()
        own = session.scalar(sa.text("SELECT pg_current_xact_id()::text"))

        def crash() -> None:
            server.crash(pid)
            while server.ask("SELECT pg_current_xact_id()::text::bigint") < int(own):
                pass

        server.proxy.commit_cut = CommitMet(crash)
        with session, pytest.raises(CommitUnknown):
            session.commit()
    assert server.ask("SELECT pg_xact_status(CAST(:id AS xid8))", id=own) == "committed"
    assert server.name() == "before"
