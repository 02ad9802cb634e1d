"""A lock_timeout is one limit for all that PostgreSQL waits for: the turn, the row, other rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.asyncio.drivers import in_a_loop, opened, url_for
from tests.integration.locking.steps import locks, recorded, save
from tests.integration.timeouts.ways import SHORT, WAYS, given_up, hold
from tests.support.actors import Actor
from tests.support.databases import PIPELINED, Database
from tests.support.models import Lease, Order
from tests.support.waits import wait_until, wait_until_blocked

pytestmark = [pytest.mark.each_value, pytest.mark.databases("postgresql")]

ForUpdate = LockOptions.ForUpdate
LIMITS = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
WAITS_LONGER = sa.text(
    "SELECT wait_event_type = 'Lock' AND now() - query_start > interval '100 ms' "
    "FROM pg_stat_activity WHERE pid = :pid"
)

ONE_BY_ONE = "psycopg, one by one"


@pytest.fixture(params=["psycopg", ONE_BY_ONE, "psycopg2"])
def driver(
    request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Run everything with each driver; only psycopg 3 sends several statements at once."""
    if request.param != "psycopg":
        if database.column == PIPELINED:
            pytest.skip("a session with pipeline=True needs psycopg 3")
        pytest.importorskip(request.param.partition(",")[0], reason="it is in the group test")
    if request.param == ONE_BY_ONE:
        monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    return str(request.param).partition(",")[0]


@pytest.fixture
def make_limited(
    driver: str, documents: Database, session_factory: Callable[[], LockingSession]
) -> Iterator[Callable[[], LockingSession]]:
    """Return a maker of sessions whose locks are limited."""
    if driver == "psycopg":
        yield session_factory
        return
    engine = sa.create_engine(sa.make_url(documents.url).set(drivername=f"postgresql+{driver}"))
    documents.connections.watch(engine)
    yield lambda: LockingSession(engine)
    engine.dispose()


@pytest.fixture
def session_one_limit(make_limited: Callable[[], LockingSession]) -> Iterator[LockingSession]:
    with make_limited() as session:
        yield session


@pytest.fixture
def carol(
    make_limited: Callable[[], LockingSession], dave: Callable[..., Actor[LockingSession]]
) -> Actor[LockingSession]:
    return dave(make_limited)


def sqlstate_of(error: LockNotAvailable) -> Any:
    """Return the server's SQLSTATE, as the driver reports it."""
    orig: Any = error.orig
    return getattr(orig, "sqlstate", None) or orig.pgcode  # psycopg and asyncpg; psycopg2


def limits_of(session: LockingSession) -> tuple[str, ...]:
    return tuple(session.connection().exec_driver_sql(LIMITS).one())


def set_limits(session: LockingSession, of_lock: str, of_statement: str) -> None:
    session.begin()
    connection = session.connection()
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{of_lock}'")
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{of_statement}'")


def document_of(name: str) -> type[Any]:
    return Lease if name == "of two tables" else Order


@pytest.mark.parametrize("name", ["get_entity", "get_entities", "of two tables"])
def test_two_waits_have_one_limit(
    database: Database,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    carol: Actor[LockingSession],
    name: str,
) -> None:
    """Bob has the turn behind alice, and loses it; carol then has the turn, but not the row."""
    alice.does(locks(document_of(name), 1))
    first = bob.starts(locks(document_of(name), 1))
    wait_until_blocked(waiter=bob, holder=alice, step=first)
    second = carol.starts(lambda session: WAYS[name](session, lock_timeout=2))
    wait_until_blocked(waiter=carol, holder=bob, step=second)
    waits, loses = carol.server_pid(), bob.server_pid()
    with database.observer().connect() as server:  # the statement's limit is 30 ms longer
        wait_until(lambda: server.execute(WAITS_LONGER, {"pid": waits}).scalar())
        server.execute(sa.select(sa.func.pg_cancel_backend(loses)))
    with pytest.raises(LockNotAvailable, match="a cancel request"):
        first.result(10)
    with pytest.raises(LockNotAvailable, match="not granted within 2 s") as caught:
        second.result(10)
    assert sqlstate_of(caught.value) == "57014"  # the statement's limit
    assert caught.value.entity is document_of(name)
    alice.does(save)
    carol.does(lambda session: WAYS[name](session, lock_timeout=1))


@pytest.mark.not_databases(PIPELINED)
def test_a_server_side_cursor_is_limited_while_it_is_read(documents: Database) -> None:
    """The server locks a cursor's rows as they are fetched."""
    pytest.importorskip("psycopg2", reason="it is in the group test")
    url = sa.make_url(documents.url).set(drivername="postgresql+psycopg2")
    engine = sa.create_engine(url, execution_options={"stream_results": True})
    with LockingSession(engine) as session:
        assert session.get_one_entity(Limited, 1, ForUpdate, lock_timeout=30).limit == "30030ms"
        assert limits_of(session) == ("0", "0")
    engine.dispose()


@pytest.mark.not_databases(PIPELINED)
def test_what_is_read_after_the_lock_is_not_limited(
    session_one_limit: LockingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    with recorded(session_one_limit.get_bind()) as statements:
        WAYS["of two tables"](session_one_limit, lock_timeout=30)
    assert "FOR UPDATE" in statements[1]
    limits = ["statement_timeout" in statement for statement in statements]
    assert limits[:4] == [True, False, True, False]


@pytest.mark.not_databases(PIPELINED)
@in_a_loop
async def test_two_waits_have_one_limit_with_asyncpg(
    documents: Database, alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(locks(Order, 1))
    first = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=first)
    loses = bob.server_pid()
    async with opened(url_for(documents, "asyncpg")) as session:
        pid = await session.scalar(sa.text("SELECT pg_backend_pid()"))
        second = asyncio.create_task(session.get_entity(Order, 1, ForUpdate, lock_timeout=2))
        with documents.observer().connect() as server:

            def waits_longer() -> Any:
                return server.execute(WAITS_LONGER, {"pid": pid}).scalar()

            await asyncio.to_thread(wait_until, waits_longer)
            server.execute(sa.select(sa.func.pg_cancel_backend(loses)))
        with pytest.raises(LockNotAvailable, match="not granted within 2 s") as caught:
            await second
        assert sqlstate_of(caught.value) == "57014"  # the statement's limit
    with pytest.raises(LockNotAvailable, match="a cancel request"):
        first.result(10)
    alice.does(save)


@pytest.mark.not_databases(PIPELINED)
@in_a_loop
async def test_both_limits_are_put_back_with_asyncpg(documents: Database) -> None:
    async with opened(url_for(documents, "asyncpg")) as session:
        await session.execute(sa.text("SET LOCAL lock_timeout = '7s'"))
        await session.execute(sa.text("SET LOCAL statement_timeout = '9min'"))
        found = await session.get_one_entity(Limited, 1, ForUpdate, lock_timeout=30)
        assert found.limit == "30030ms"
        assert tuple((await session.execute(sa.text(LIMITS))).one()) == ("7s", "9min")


def many_orders(session: LockingSession, **how: Any) -> list[Order]:
    return session.get_entities(Order, [1, 2], ForUpdate, **how)


def many_documents(session: LockingSession, **how: Any) -> list[Order]:
    return session.get_documents(Order, [1, 2], ForUpdate, **how)


@pytest.mark.parametrize("way", [many_orders, many_documents])
def test_two_rows_have_one_limit(
    database: Database,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    carol: Actor[LockingSession],
    way: Any,
) -> None:
    """Carol waits for order 1, gets it, and then waits for order 2."""
    alice.does(locks(Order, 1))
    bob.does(locks(Order, 2))
    step = carol.starts(lambda session: way(session, lock_timeout=2))
    wait_until_blocked(waiter=carol, holder=alice, step=step)
    waits = carol.server_pid()
    with database.observer().connect() as server:  # the statement's limit is 30 ms longer
        wait_until(lambda: server.execute(WAITS_LONGER, {"pid": waits}).scalar())
    alice.does(save)
    with pytest.raises(LockNotAvailable, match="not granted within 2 s") as caught:
        step.result(10)
    assert sqlstate_of(caught.value) == "57014"  # the statement's limit
    bob.does(save)
    assert len(carol.does(lambda session: way(session, lock_timeout=1))) == 2


@pytest.mark.parametrize("name", [name for name in WAYS if name != "locked"])
def test_both_limits_are_put_back(session_one_limit: LockingSession, name: str) -> None:
    set_limits(session_one_limit, "7s", "9min")
    WAYS[name](session_one_limit, lock_timeout=29.5)
    assert limits_of(session_one_limit) == ("7s", "9min")
    session_one_limit.rollback()
    assert limits_of(session_one_limit) == ("0", "0")


def test_both_are_put_back_after_a_savepoint(
    session_one_limit: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    set_limits(session_one_limit, "7s", "9min")
    with session_one_limit.begin_nested() as savepoint:
        with pytest.raises(LockNotAvailable):
            session_one_limit.get_entity(Order, 1, ForUpdate, lock_timeout=0.01)
        savepoint.rollback()
    assert limits_of(session_one_limit) == ("7s", "9min")


class OwnBase(DeclarativeBase):
    pass


class Limited(OwnBase):
    """An order that reports the limit of the statement that read it."""

    __table__ = Order.__table__
    id: Mapped[int]
    limit: Mapped[str] = column_property(sa.func.current_setting("statement_timeout"))


@pytest.mark.parametrize(
    ("own", "within"),
    [("0", "30030ms"), ("1h", "30030ms"), ("30s", "30s"), ("400ms", "400ms"), ("1d", "30030ms")],
)
def test_the_users_own_limit_stays_where_it_is_shorter(
    session_one_limit: LockingSession, own: str, within: str
) -> None:
    set_limits(session_one_limit, "0", own)
    assert session_one_limit.get_one_entity(Limited, 1, ForUpdate, lock_timeout=30).limit == within
    assert limits_of(session_one_limit) == ("0", own)


def test_a_short_limit_leaves_the_statement_its_time(session_one_limit: LockingSession) -> None:
    assert (
        session_one_limit.get_one_entity(Limited, 1, ForUpdate, lock_timeout=0.001).limit == "250ms"
    )


def test_a_set_is_not_limited_as_a_whole(session_one_limit: LockingSession) -> None:
    """Reading many rows takes time without a wait."""
    statement = session_one_limit.entity_set(Limited, ForUpdate, lock_timeout=30).where(
        Order.id == 1
    )
    assert session_one_limit.scalars(statement).one().limit == "0"


@pytest.mark.parametrize(("keys", "within"), [(50, "30030ms"), (51, "0")])
def test_many_keys_are_not_limited_as_a_whole(
    session_one_limit: LockingSession, keys: int, within: str
) -> None:
    found = session_one_limit.get_entities(Limited, range(1, keys + 1), ForUpdate, lock_timeout=30)
    assert {one.limit for one in found} == {within}


def test_the_users_own_limit_is_distinguished_from_ours(
    session_one_limit: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    set_limits(session_one_limit, "0", "40ms")
    with pytest.raises(LockNotAvailable, match="statement_timeout or a cancel request"):
        session_one_limit.get_entity(Order, 1, ForUpdate, lock_timeout=60)


# --------------------------------------------------------------------------------------------------
# PostgreSQL: the lock restores the lock_timeout that the caller set for the transaction.

Session = LockingSession


@pytest.fixture(params=["pipelined", "one by one"])
def pipelined(
    request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Run everything without psycopg's pipeline as well."""
    if request.param == "one by one":
        if database.column == PIPELINED:
            pytest.skip("a session with pipeline=True needs it")
        monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    return bool(request.param == "pipelined")


def limit_of(session: Session) -> str:
    limit: str = session.connection().exec_driver_sql("SHOW lock_timeout").scalar_one()
    return limit


def set_limit(session: Session, limit: str) -> None:
    session.connection().exec_driver_sql(f"SET LOCAL lock_timeout = '{limit}'")


@pytest.mark.usefixtures("pipelined")
def test_after_each_way_to_lock(session: Session) -> None:
    for name, way in WAYS.items():
        session.begin()
        set_limit(session, "7s")
        way(session, lock_timeout=29.5)
        assert limit_of(session) == "7s", name
        way(session, lock_timeout=1e-9)  # held already, or locked again
        assert limit_of(session) == "7s", name
        session.rollback()
        assert limit_of(session) == "0", name
        session.rollback()


@pytest.mark.usefixtures("pipelined")
def test_inside_savepoints(session: Session, other: Session) -> None:
    hold(other)
    session.begin()
    set_limit(session, "7s")
    with session.begin_nested():
        set_limit(session, "8s")
        with session.begin_nested():
            session.get_one_entity(Order, 2, ForUpdate, lock_timeout=29.5)
            assert limit_of(session) == "8s"
        for name in ("get_entity", "set of two tables", "of two tables"):
            with suppress(LockNotAvailable), session.begin_nested():
                WAYS[name](session, lock_timeout=SHORT)
            assert limit_of(session) == "8s"
    assert limit_of(session) == "8s"  # SET LOCAL lasts to the end of the transaction
    assert list(session.held_locks) == [(Order, (2,))]
    session.rollback()


@pytest.mark.usefixtures("pipelined")
def test_one_that_was_set_in_the_savepoint_goes_with_it(session: Session) -> None:
    session.begin()
    set_limit(session, "7s")
    savepoint = session.begin_nested()
    set_limit(session, "8s")
    session.get_one_entity(Order, 2, ForUpdate, lock_timeout=29.5)
    savepoint.rollback()
    assert limit_of(session) == "7s"
    session.get_one_entity(Order, 2, ForUpdate, lock_timeout=29.5)
    assert limit_of(session) == "7s"
    session.rollback()


@pytest.mark.usefixtures("pipelined")
def test_the_limit_counts_only_where_it_was_asked_for(session: Session, other: Session) -> None:
    hold(other)
    session.begin()
    set_limit(session, "100ms")
    session.get_one_entity(Order, 2, ForUpdate, lock_timeout=29.5)
    assert "within the server's own limit" in str(given_up(session, WAYS["get_entity"]))


@pytest.mark.usefixtures("pipelined")
def test_of_a_lent_connection(engine: sa.Engine, other: Session) -> None:
    hold(other)
    with engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("SET LOCAL lock_timeout = '7s'")
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            session.get_one_entity(Order, 2, ForUpdate, lock_timeout=29.5)
            assert limit_of(session) == "7s"
            session.commit()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            given_up(session, WAYS["get_entity"], lock_timeout=SHORT)
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar_one() == "7s"


@pytest.mark.usefixtures("pipelined")
@pytest.mark.not_databases(PIPELINED)
@in_a_loop
async def test_by_other_drivers(documents: Database) -> None:
    for driver in ("asyncpg", "psycopg"):
        async with opened(url_for(documents, driver)) as session:

            async def limit(session: Any = session) -> Any:
                return await session.scalar(sa.text("SELECT current_setting('lock_timeout')"))

            await session.execute(sa.text("SET LOCAL lock_timeout = '7s'"))
            await session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5)
            assert await limit() == "7s", driver
            async with session.begin_nested():
                orders = session.entity_set(Order, ForUpdate, lock_timeout=5.5)
                assert len((await session.scalars(orders)).all()) == 2
                assert await limit() == "7s", driver
            await session.rollback()
            assert await limit() == "0", driver


@pytest.mark.usefixtures("pipelined")
def test_without_a_limit_of_ours_nothing_is_set(
    engine: sa.Engine, session: Session, pipelined: bool
) -> None:
    with recorded(engine) as statements:
        session.get_one_entity(Order, 1, ForUpdate)
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate, lock_timeout=0)
    assert not [one for one in statements if "lock_timeout" in one]
    session.rollback()
    with recorded(engine) as statements:
        session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5)
    reported = [one for one in statements if "lock_timeout" in one]
    assert len(reported) == (0 if pipelined else 2)  # SQLAlchemy sees nothing of a pipeline
