"""An engine warns of a cluster before its first lock; the answers that identify a cluster.

The servers are scripted. tests/reliability/cluster runs Galera and Group Replication; no test runs Percona XtraDB Cluster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError as SAOperationalError

from sa_doclock import (
    ClusterLockWarning,
    DeadlockDetected,
    LockingSession,
    LockOptions,
)
from sa_doclock.dialects import strategy_for
from sa_doclock.errors import PAGE
from tests.sql.driver import Script
from tests.sql.models import Order
from tests.sql.servers import SERVERS, OperationalError, serving
from tests.support.rows import rows

ForUpdate = LockOptions.ForUpdate
PROVIDER = ("wsrep_provider", "/usr/lib/libgalera_smm.so")
WSREP = [("wsrep_on", "ON"), PROVIDER]
FIND_ABORT = "SELECT 1 FROM information_schema.schemata LIMIT 1"
PRIMARIES = [
    ("group_replication_group_name", "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"),
    ("group_replication_single_primary_mode", "OFF"),
]


def answering(name: str, settings: list[tuple[str, str]]) -> Callable[[Script], Engine]:
    def connect(script: Script) -> Engine:
        engine = SERVERS[name](script)
        script.handshake = {
            **script.handshake,
            "innodb_rollback_on_timeout": settings or [("", "")],
        }
        return engine

    return connect


@contextmanager
def session_of(name: str, settings: list[tuple[str, str]]) -> Iterator[LockingSession]:
    with serving(name, answering(name, settings)) as (engine, _), LockingSession(engine) as session:
        yield session


def for_update(session: LockingSession) -> object:
    return session.get_entity(Order, 1, ForUpdate)


def shared_read(session: LockingSession) -> object:
    return session.get_entity(Order, 1, LockOptions.SharedRead)


def by_sqlalchemy(session: LockingSession) -> object:
    return session.get(Order, 1, with_for_update=True)


def many(session: LockingSession) -> object:
    return session.get_entities(Order, [1], ForUpdate)


def a_set(session: LockingSession) -> object:
    return session.scalars(session.entity_set(Order, ForUpdate)).all()


def snapshot(session: LockingSession) -> object:
    return session.get_entity(Order, 1, LockOptions.SnapshotRead)


def plain(session: LockingSession) -> object:
    return session.get_entity(Order, 1)


NODES = [("mariadb", WSREP), ("mysql", WSREP), ("mysql", PRIMARIES)]
NO_NODES: list[tuple[str, list[tuple[str, str]]]] = [
    ("mariadb", []),
    ("mysql", []),
    ("mariadb", [("wsrep_on", "OFF"), PROVIDER]),
    ("mariadb", [("wsrep_on", "ON"), ("wsrep_provider", "none")]),
    ("mariadb", [("wsrep_on", "ON"), ("wsrep_provider", "")]),
    ("mysql", [PRIMARIES[0], ("group_replication_single_primary_mode", "ON")]),
    ("mysql", [("group_replication_group_name", ""), PRIMARIES[1]]),
]


@rows(("name", "settings"), NODES)
@rows("lock", [for_update, shared_read, by_sqlalchemy, many, a_set])
def test_the_first_lock_of_rows_warns_and_says_what_to_do(
    name: str, settings: list[tuple[str, str]], lock: Callable[[LockingSession], Any]
) -> None:
    with session_of(name, settings) as session:
        advice = "change the header in each .* run_transaction.* send all writers to one node"
        with pytest.warns(ClusterLockWarning, match=advice) as caught:
            lock(session)
        session.rollback()
        lock(session)
        assert len(caught) == 1
        assert str(caught[0].message).endswith(f" at: {PAGE}#local_to_a_node)")
        assert caught[0].filename == __file__


@pytest.mark.parametrize(("name", "settings"), NO_NODES)
def test_a_server_that_is_no_node_of_a_cluster_does_not(
    name: str, settings: list[tuple[str, str]]
) -> None:
    with session_of(name, settings) as session:
        for_update(session)
        session.lock_key("a key")
        cluster = strategy_for(session.get_bind()).cluster
        assert cluster is None or cluster.name is None


@pytest.mark.parametrize("read", [snapshot, plain])
def test_a_read_without_a_lock_does_not(read: Callable[[LockingSession], Any]) -> None:
    with session_of("mariadb", WSREP) as session:
        read(session)


def test_a_named_lock_has_a_warning_of_its_own() -> None:
    with session_of("mariadb", WSREP) as session:
        with pytest.warns(ClusterLockWarning, match="named locks are local"):
            session.lock_key("a key")
        session.lock_key("another key")  # the test turns a warning into an error
        with pytest.warns(ClusterLockWarning, match="row locks are local"):
            for_update(session)


def test_where_it_is_an_error_nothing_is_sent_and_each_lock_raises() -> None:
    with (
        serving("mariadb", answering("mariadb", WSREP)) as (engine, script),
        LockingSession(engine) as session,
    ):
        for _ in range(2):
            with pytest.raises(ClusterLockWarning):  # as pytest does for all warnings
                for_update(session)
            assert not session.in_transaction()
        assert script.sent == []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ClusterLockWarning)
            for_update(session)
        assert session.held_locks


@pytest.mark.parametrize(
    ("number", "text", "kind"),
    [
        (
            3101,
            "Plugin instructed the server to rollback the current transaction.",
            DeadlockDetected,
        ),
        (
            1180,
            "Got error 149 - 'Lock deadlock; Retry transaction' during COMMIT",
            DeadlockDetected,
        ),
        (1180, "Got error 28 - 'No space left on device' during COMMIT", SAOperationalError),
        (1180, "Got error 1490 - 'Some other' during COMMIT", SAOperationalError),
    ],
)
@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
def test_the_errors_of_a_commit_in_a_group_of_primaries(
    number: int, text: str, kind: type[Exception]
) -> None:
    with (
        serving("mysql", answering("mysql", PRIMARIES)) as (engine, script),
        LockingSession(engine) as session,
    ):
        for_update(session)
        script.failures.append(("(commit)", OperationalError(number, text)))
        with pytest.raises(kind) as caught:
            session.commit()
        assert type(caught.value) is kind
        session.rollback()


NO_SAVEPOINT = "Got error 153 - 'No savepoint with that name'"
UNKNOWN = "Got error 168 - 'Unknown (generic) error'"
OF_ENGINE, DURING_ROLLBACK = "from storage engine", "during ROLLBACK"


@pytest.mark.parametrize(
    ("number", "text", "kind"),
    [
        (1030, f"{NO_SAVEPOINT} {OF_ENGINE}", DeadlockDetected),
        (1030, f"{UNKNOWN} {OF_ENGINE}", SAOperationalError),
        (1181, f"{NO_SAVEPOINT} {DURING_ROLLBACK}", DeadlockDetected),
        (1181, f"{UNKNOWN} {DURING_ROLLBACK}", SAOperationalError),
    ],
)
@pytest.mark.parametrize(("end", "sent"), [("commit", "RELEASE"), ("rollback", "ROLLBACK TO")])
@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
def test_the_error_of_a_savepoint_whose_transaction_was_ended(
    number: int, text: str, kind: type[Exception], end: str, sent: str
) -> None:
    with (
        serving("mysql", answering("mysql", PRIMARIES)) as (engine, script),
        LockingSession(engine) as session,
    ):
        for_update(session)
        savepoint = session.begin_nested()
        session.connection()
        script.failures.append((f"{sent} SAVEPOINT sa_savepoint", OperationalError(number, text)))
        with pytest.raises(kind) as caught:
            getattr(savepoint, end)()
        assert type(caught.value) is kind
        session.rollback()


@pytest.mark.parametrize("single", ["ON", "OFF"])
@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
def test_a_member_of_a_group_is_asked_for_a_row_before_a_savepoint_under_a_lock(
    single: str,
) -> None:
    """This includes a secondary of a single primary: the server may end a SharedRead there."""
    settings = [PRIMARIES[0], ("group_replication_single_primary_mode", single)]
    with (
        serving("mysql", answering("mysql", settings)) as (engine, script),
        LockingSession(engine) as session,
    ):
        with session.begin_nested():  # before a lock it would start the snapshot of others
            session.connection()
        assert FIND_ABORT not in script.sent
        session.rollback()
        shared_read(session)
        with session.begin_nested():
            session.connection()
            before, savepoint, again, mark, schema = script.sent[-5:]
            assert before == again == FIND_ABORT  # sent again before the marker of connection()
            assert savepoint.startswith("SAVEPOINT sa_savepoint")
            assert mark.startswith("SAVEPOINT sa_doclock_mark")
            assert schema == "SELECT DATABASE()"
        session.rollback()
        script.sent.clear()
        with session.begin_nested():  # no listener of the previous transaction remains
            session.connection()
        assert FIND_ABORT not in script.sent


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
@pytest.mark.parametrize(
    ("name", "settings"), [("mysql", []), ("mysql", WSREP), ("mariadb", WSREP)]
)
def test_no_other_server_is(name: str, settings: list[tuple[str, str]]) -> None:
    with (
        serving(name, answering(name, settings)) as (engine, script),
        LockingSession(engine) as session,
    ):
        for_update(session)
        with session.begin_nested():
            session.connection()
        assert FIND_ABORT not in script.sent


def test_each_engine_warns_for_itself() -> None:
    for _ in range(2):
        with session_of("mariadb", WSREP) as session, pytest.warns(ClusterLockWarning):
            for_update(session)
