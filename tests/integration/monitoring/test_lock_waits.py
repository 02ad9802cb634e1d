"""lock_waits(): which session waits for which on the server, and the root of each wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import (
    LockConnection,
    LockingSession,
    LockNotSupported,
    LockOptions,
    LockWait,
    lock_waits,
)
from tests.integration.locking.connections import patience_of
from tests.integration.locking.steps import locks, roll_back, save
from tests.integration.monitoring.steps import (
    ON_SERVERS,
    among,
    blockers,
    ids,
    insert_order_77,
    lock_table,
    unlock_table,
    up_to_date,
)
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order, Voucher
from tests.support.waits import wait_until, wait_until_blocked

Session = Actor[LockingSession]
Make = Callable[..., sa.Engine]


def host_of(database: Database) -> str | None:
    """Return the client address that the server reports for our connections."""
    asked = {
        "postgresql": "SELECT host(inet_client_addr())",
        "mysql": "SELECT SUBSTRING_INDEX(USER(), '@', -1)",
        "mariadb": "SELECT SUBSTRING_INDEX(USER(), '@', -1)",
    }
    with database.observer().connect() as connection:
        host = connection.exec_driver_sql(asked[database.name]).scalar()
    return None if host is None else str(host)


@ON_SERVERS
def test_nobody_waits(database: Database, alice: Session, bob: Session, engine: sa.Engine) -> None:
    alice.does(locks(Order, 1))
    bob.does(locks(Order, 2))
    look = lambda: among(lock_waits(engine), alice, bob)  # noqa: E731
    assert up_to_date(database, look, lambda found: not found) == []


@ON_SERVERS
@pytest.mark.parametrize(
    ("entity", "ident", "key"), [(Order, 1, "1"), (Voucher, (2024, 1), "2024, 1")]
)
def test_a_wait_is_reported(
    database: Database,
    alice: Session,
    bob: Session,
    engine: sa.Engine,
    entity: type[Any],
    ident: Any,
    key: str,
) -> None:
    alice.does(locks(entity, ident))
    queued = bob.starts(locks(entity, ident))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    look = lambda: among(lock_waits(engine), bob)  # noqa: E731
    (wait,) = up_to_date(database, look, lambda found: found)
    assert {wait.waiter.connection_id} == ids(bob)
    assert {wait.blocker.connection_id} == ids(alice)
    alice.does(roll_back)
    queued.result()
    assert wait.root_blocker == wait.blocker
    assert wait.table == entity.__tablename__
    assert wait.key == key
    assert wait.seconds is not None
    assert wait.seconds >= 0
    assert (wait.waiter.state, wait.blocker.state) == ("active", "idle in transaction")
    assert "FOR UPDATE" in str(wait.waiter.statement)
    user = sa.make_url(database.url).username
    assert (wait.waiter.user, wait.blocker.user) == (user, user)
    assert (wait.waiter.host, wait.blocker.host) == 2 * (host_of(database),)
    assert str(wait).startswith(f"{entity.__tablename__} {key}: {wait.waiter} has waited ")
    assert f" for {wait.blocker}" in str(wait)


@pytest.mark.databases("mysql", "mariadb")  # elsewhere a locking read skips such a row
def test_behind_a_row_just_inserted_the_blocker_is_who_inserted_it(
    database: Database, alice: Session, bob: Session, engine: sa.Engine
) -> None:
    # The lock is implicit until a session waits for it. The waiter then records it, and MySQL names
    # the waiter's thread in both columns of data_lock_waits.
    alice.does(insert_order_77)
    queued = bob.starts(locks(Order, 77))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    look = lambda: among(lock_waits(engine), bob)  # noqa: E731
    (wait,) = up_to_date(database, look, lambda found: found)
    assert {wait.waiter.connection_id} == ids(bob)
    assert {wait.blocker.connection_id} == ids(alice)
    assert (wait.table, wait.key) == ("lk_order", "77")
    alice.does(save)
    assert queued.result().id == 77


@ON_SERVERS
def test_behind_another_waiter_the_root_is_who_holds_it(
    database: Database, alice: Session, bob: Session, carol: Session, engine: sa.Engine
) -> None:
    alice.does(locks(Order, 1))
    first = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=first)
    second = carol.starts(locks(Order, 1))
    wait_until_blocked(waiter=carol, holder=bob, step=second)
    look = lambda: among(lock_waits(engine), bob, carol)  # noqa: E731
    found = up_to_date(database, look, lambda found: len(found) > 1)
    pairs = {(wait.waiter.connection_id, wait.blocker.connection_id) for wait in found}
    (root,), (middle,), (last,) = ids(alice), ids(bob), ids(carol)
    assert {(middle, root), (last, middle)} <= pairs
    assert {wait.root_blocker.connection_id for wait in found} == {root}
    assert [wait.seconds or 0 for wait in found] == sorted(
        (wait.seconds or 0 for wait in found), reverse=True
    )
    alice.does(roll_back)
    first.result()
    bob.does(roll_back)
    second.result()


@ON_SERVERS
def test_who_waits_for_two_is_reported_twice(
    database: Database, alice: Session, bob: Session, carol: Session, engine: sa.Engine
) -> None:
    for actor in (alice, bob):
        actor.does(locks(Order, 1, LockOptions.SharedRead))
    queued = carol.starts(locks(Order, 1))
    wait_until_blocked(waiter=carol, holder=alice, step=queued)
    look = lambda: among(lock_waits(engine), carol)  # noqa: E731
    found = up_to_date(database, look, lambda found: len(found) > 1)
    # On PostgreSQL a waiter waits for one holder after another.
    all_of_them = ids(alice) if database.name == "postgresql" else ids(alice, bob)
    assert sorted(wait.blocker.connection_id for wait in found) == sorted(all_of_them)
    for actor in (alice, bob):
        actor.does(roll_back)
    queued.result()


@ON_SERVERS
def test_a_reader_that_has_what_it_wants_does_not_wait(
    database: Database, alice: Session, bob: Session, carol: Session, engine: sa.Engine
) -> None:
    # On MariaDB 11.8 every reader has the transaction number 0.
    alice.does(locks(Order, 1))
    carol.does(locks(Order, 2, LockOptions.SharedRead))
    queued = bob.starts(locks(Order, 1, LockOptions.SharedRead))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    look = lambda: among(lock_waits(engine), alice, bob, carol)  # noqa: E731
    found = up_to_date(database, look, lambda found: found)
    assert {wait.waiter.connection_id for wait in found} == ids(bob)
    assert {wait.blocker.connection_id for wait in found} == ids(alice)
    alice.does(roll_back)
    queued.result()


@pytest.mark.read_committed
@pytest.mark.databases("postgresql", "mysql")
def test_a_wait_for_a_table_is_reported(alice: Session, bob: Session, engine: sa.Engine) -> None:
    alice.does(lock_table)
    bob.does(lambda session: session.connection())
    queued = bob.starts(locks(Order, 1))
    found: list[LockWait] = []
    while not (found or queued.done()):  # polls the server
        found = among(lock_waits(engine), bob)
    holder = ids(alice)
    alice.does(unlock_table)
    queued.result()
    (wait,) = found
    assert {wait.blocker.connection_id} == holder
    assert (wait.table, wait.key) == ("lk_order", None)


@ON_SERVERS
def test_a_wait_for_a_named_lock_is_reported(
    database: Database, alice: Session, bob: Session, engine: sa.Engine
) -> None:
    take = {
        "postgresql": "SELECT pg_advisory_xact_lock(4711)",
        "mysql": "SELECT GET_LOCK('4711', 60)",
        "mariadb": "SELECT GET_LOCK('4711', 60)",
    }

    def name_it(session: LockingSession) -> None:
        session.execute(sa.text(take[database.name]))

    alice.does(name_it)
    queued = bob.starts(name_it)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    (wait,) = among(lock_waits(engine), bob)
    assert {wait.blocker.connection_id} == ids(alice)
    assert (wait.table, wait.key) == (None, "4711")
    alice.does(lambda session: session.invalidate())
    queued.result()
    bob.does(lambda session: session.invalidate())


@ON_SERVERS
@pytest.mark.parametrize("key", ["import:prices", "a key of Ann's, " + 90 * "x"])
def test_a_wait_for_a_key_is_reported_by_the_key(
    alice: Session, bob: Session, engine: sa.Engine, key: str
) -> None:
    alice.does(lambda session: session.lock_key(key))
    queued = bob.starts(lambda session: session.lock_key(key, lock_timeout=60))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    (wait,) = among(lock_waits(engine), bob)
    assert (wait.blocker.connection_id, wait.table, wait.key) == (*ids(alice), None, key)
    alice.does(lambda session: session.rollback())
    queued.result()


@ON_SERVERS
def test_another_process_tells_the_key_too(
    alice: Session, bob: Session, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.does(lambda session: session.lock_key("import:prices of 100%"))
    queued = bob.starts(lambda session: session.lock_key("import:prices of 100%", lock_timeout=60))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    recent = "sa_doclock.dialects.named_locks._keys"
    with monkeypatch.context() as patched:
        patched.setattr(recent, {})  # as in a process that has not queried a key
        (wait,) = among(lock_waits(engine), bob)
    assert "import:prices" in str(wait.key)
    alice.does(lambda session: session.rollback())
    queued.result()


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize(
    "key", ["a */ SELECT 1 /* b", "100% :pk %(pk)s", "--\n;'\"\\:x", "\u00fc" * 300]
)
def test_a_key_cannot_leave_its_comment(alice: Session, bob: Session, key: str) -> None:
    alice.does(lambda session: session.lock_key(key))
    queued = bob.starts(lambda session: session.lock_key(key, lock_timeout=60))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(lambda session: session.rollback())
    queued.result()


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("key", ["a\nLOG: \x1b[2J\u2028", "a" * 100_000], ids=["forged", "long"])
def test_a_comment_is_on_one_line_and_short(
    database: Database, documents: Database, key: str
) -> None:
    assert documents is database
    engine, sent = database.engine(), []
    sa.event.listen(engine, "do_execute", lambda _c, statement, *_: sent.append(statement))
    with LockingSession(engine) as session:
        session.lock_key(key)
    (comment,) = [one.partition("/*")[2] for one in sent if "advisory" in one]
    assert comment.isprintable()
    assert len(comment) < 150


@pytest.mark.databases("postgresql")
def test_hidden_parameters_are_in_no_comment(database: Database, documents: Database) -> None:
    assert documents is database
    sent: list[str] = []
    for hide in (False, True):
        engine = database.engine(hide_parameters=hide)
        sa.event.listen(engine, "do_execute", lambda _c, statement, *_: sent.append(statement))
        with LockingSession(engine) as session:
            session.lock_key("secret")
    assert [("secret" in one) for one in sent if "advisory" in one] == [True, False]


@ON_SERVERS
def test_an_exhausted_pool_and_an_open_transaction_are_left_alone(make_engine: Make) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=2)
    with engine.connect() as connection:
        before = patience_of(connection)
        transaction = connection.get_transaction()
        for bind in (engine, connection):
            assert isinstance(lock_waits(bind), list)
        assert connection.get_transaction() is transaction
        assert patience_of(connection) == before
        assert engine.pool.checkedout() == 1  # type: ignore[attr-defined]


@pytest.mark.databases("sqlite")
def test_sqlite_has_nobody_to_ask(engine: sa.Engine) -> None:
    with pytest.raises(LockNotSupported, match=r"^lock_waits\(\) is not supported on sqlite"):
        lock_waits(engine)


@pytest.mark.databases("mysql", "mariadb")
def test_a_prepared_transaction_is_reported_as_connection_0(
    database: Database, asker: LockingSession, bob: Session, engine: sa.Engine
) -> None:
    with engine.connect() as connection:
        for words in ("START", "END", "PREPARE"):
            connection.exec_driver_sql(f"XA {words} 'doclock'")
            if words == "START":
                connection.execute(sa.update(Order).where(Order.id == 1).values(total=31))
        connection.invalidate()
    try:
        # After the server notices the closed connection; MariaDB reports it from a copy.
        wait_until(lambda: set(blockers(asker, Order, 1)) == {0}, poll_seconds=0.12)
        queued = bob.starts(locks(Order, 1))
        found: list[LockWait] = []
        while not (found or queued.done()):
            found = up_to_date(database, lambda: among(lock_waits(engine), bob), bool)
    finally:
        with database.observer().connect() as connection:
            connection.exec_driver_sql("XA ROLLBACK 'doclock'")
    queued.result()
    assert [wait.blocker for wait in found] == [LockConnection(0, state="prepared transaction")]


# --------------------------------------------------------------------------------------------------
# The privileges that an account needs to see who waits; no others are required.

NEEDED = {"mysql": "SELECT ON performance_schema.*", "mariadb": "PROCESS ON *.*"}


@contextmanager
def engine_of(url: sa.URL) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


@pytest.mark.databases("mysql", "mariadb")
def test_who_may_not_know_learns_what_to_grant_and_that_is_enough(
    database: Database, alice: Session, bob: Session, poor: sa.URL
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    with engine_of(poor) as engine:
        with pytest.raises(LockNotSupported) as caught:
            lock_waits(engine)
        needed = NEEDED[database.name]
        text = f"lock_waits() on {database.name}: the account needs GRANT {needed}"
        assert caught.value.args == (text,)
        with database.observer().connect() as connection:
            connection.exec_driver_sql(f"GRANT {needed} TO {poor.username}")
        engine.dispose()  # MariaDB has recorded the connection's privileges
        (wait,) = up_to_date(database, lambda: among(lock_waits(engine), bob), lambda found: found)
        with LockingSession(engine, diagnose=True) as session:
            found = up_to_date(
                database,
                lambda: blockers(session, Order, 1),
                lambda found: set(found) == ids(alice),
            )
    assert set(found) == {wait.blocker.connection_id} == ids(alice)
    assert wait.waiter.state == "active"
    assert "FOR UPDATE" in str(wait.waiter.statement)
    assert wait.blocker.transaction_seconds is not None
    alice.does(roll_back)
    queued.result()


@pytest.mark.databases("postgresql")
def test_on_postgresql_every_account_sees_who_waits(
    alice: Session, bob: Session, poor: sa.URL
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    with engine_of(poor) as engine:
        (wait,) = among(lock_waits(engine), bob)
    assert {wait.blocker.connection_id} == ids(alice)
    assert (wait.waiter.state, wait.waiter.statement) == (None, None)
    assert (wait.table, wait.key) == ("lk_order", "1")
    alice.does(roll_back)
    queued.result()
