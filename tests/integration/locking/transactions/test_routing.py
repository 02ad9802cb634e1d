"""A program's get_bind(): the lock and all reads under it use the same database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import Session as PlainSession
from sqlalchemy.sql import Delete, Update

from sa_doclock import (
    DocumentGate,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    StaleDocument,
    WrongIsolation,
)
from sa_doclock.core.session import context_of
from tests.integration.locking.steps import finds_held, recorded, seen
from tests.support.models import Account, Contract, Customer, Line, Order

pytestmark = pytest.mark.own_logic

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
SnapshotRead, NoWait = LockOptions.SnapshotRead, LockOptions.NoWait
MakeEngine = Callable[..., sa.Engine]


class Engines(NamedTuple):
    """Engines of one database, which a session treats as several."""

    primary: sa.Engine
    first: sa.Engine
    second: sa.Engine


@pytest.fixture
def engines(make_engine: MakeEngine, read_committed: dict[str, Any]) -> Engines:
    return Engines(*(make_engine(**read_committed) for _ in Engines._fields))


@pytest.fixture
def sent(engines: Engines) -> Iterator[Callable[[], list[str]]]:
    """Return a function that names the engines that received a statement so far."""
    with ExitStack() as stack:
        statements = [stack.enter_context(recorded(engine)) for engine in engines]
        yield lambda: [name for name, some in zip(Engines._fields, statements, strict=True) if some]


def routing(engines: Engines) -> type[LockingSession]:
    """Return the class from SQLAlchemy's documentation, with turns in place of chance."""
    replicas = cycle((engines.first, engines.second))

    class Routing(LockingSession):
        def get_bind(self, mapper: Any = None, clause: Any = None) -> sa.Engine:  # type: ignore[override]
            if self._flushing or isinstance(clause, (Update, Delete)):
                return engines.primary
            return next(replicas)

    return Routing


def alternating(engines: Engines) -> type[LockingSession]:
    """Return a class that answers differently each time, whatever the arguments."""
    everyone = cycle(engines)

    class Alternating(LockingSession):
        def get_bind(self, *_: Any, **__: Any) -> sa.Engine:
            return next(everyone)

    return Alternating


def by_key(session: LockingSession, lock: LockOptions) -> list[Any]:
    return [session.get_one_entity(Order, 1, lock)]


def by_keys(session: LockingSession, lock: LockOptions) -> list[Any]:
    return session.get_entities(Order, [1], lock)


def by_set(session: LockingSession, lock: LockOptions) -> list[Any]:
    return list(session.scalars(session.entity_set(Order, lock).where(Order.id == 1)))


def by_join(session: LockingSession, lock: LockOptions) -> list[Any]:
    statement = session.entity_set(Order, lock).join(Line).where(Line.id == 1)
    return list(session.scalars(statement))


def by_document(session: LockingSession, lock: LockOptions) -> list[Any]:
    return [session.get_one_document(Order, 1, lock)]


def by_object(session: LockingSession, lock: LockOptions) -> list[Any]:
    order = session.get_one(Order, 1)
    session.commit()
    return [session.lock(order, lock)]


def in_savepoint(session: LockingSession, lock: LockOptions) -> list[Any]:
    session.begin_nested()
    return [session.get_one_entity(Order, 1, lock)]


WAYS = [by_key, by_keys, by_set, by_join, by_document, by_object, in_savepoint]


@pytest.mark.parametrize("lock", [ForUpdate, SharedRead, SnapshotRead])
@pytest.mark.parametrize("way", WAYS)
def test_one_connection_for_the_lock_the_header_and_the_parts(
    engines: Engines, way: Callable[..., list[Any]], lock: LockOptions
) -> None:
    with alternating(engines)() as session:
        session.begin()
        (order,) = way(session, lock)
        assert len(context_of(session).connections.all()) == 1
        assert seen(order) == (30, [10, 20])
        session.expire_all()
        assert seen(order) == (30, [10, 20])
        assert (
            session.scalars(sa.select(sa.func.sum(Line.value)).where(Line.order_id == 1)).one()
            == 30
        )
        assert len(context_of(session).connections.all()) == 1


@pytest.mark.parametrize("way", WAYS)
def test_who_is_going_to_write_locks_in_the_primary(
    engines: Engines, sent: Callable[[], list[str]], other: LockingSession, way: Callable[..., Any]
) -> None:
    with routing(engines)() as session:
        (order,) = way(session, ForUpdate)
        before = [] if way is not by_object else ["first"]  # the engine that loaded the object
        assert sent() == ["primary", *before]
        assert finds_held()(other)
        order.total += 1
        order.lines[0].value += 1
        session.commit()
    assert sent() == ["primary", *before]
    assert seen(other.get_one(Order, 1)) == (31, [11, 20])


def test_a_snapshot_is_read_from_a_replica(engines: Engines, sent: Callable[[], list[str]]) -> None:
    with routing(engines)() as session:
        assert seen(session.get_one_document(Order, 1, SnapshotRead)) == (30, [10, 20])
        assert seen(session.get_one_document(Order, 2, SnapshotRead)) != (30, [10, 20])
    assert sent() == ["first"]


@pytest.mark.not_databases("sqlite")  # its snapshot becomes a lock if no other session has written
def test_a_lock_after_a_snapshot_is_refused_as_in_one_database(
    engines: Engines, sent: Callable[[], list[str]]
) -> None:
    with routing(engines)() as session:
        session.get_one_entity(Order, 1, SnapshotRead)
        with pytest.raises(WrongIsolation):
            session.get_entity(Order, 2, ForUpdate)
    assert sent() == ["first"]


def test_after_the_transaction_the_program_chooses_again(
    engines: Engines, sent: Callable[[], list[str]]
) -> None:
    with routing(engines)() as session:
        session.get_one_entity(Order, 1, ForUpdate)
        session.commit()
        assert session.get_one(Order, 1).total == 30
    assert sent() == ["primary", "first"]


def test_another_class_is_read_where_the_program_says(
    engines: Engines, sent: Callable[[], list[str]]
) -> None:
    with routing(engines)() as session:
        session.get_one_entity(Order, 1, ForUpdate)
        session.get_one(Customer, 1)
    assert sent() == ["primary", "first"]


def test_statements_of_its_tables_run_there_too(engines: Engines) -> None:
    lines: Any = Line.__table__
    with alternating(engines)() as session:
        session.get_one_entity(Order, 1, ForUpdate).lines[0].value += 1
        session.flush()
        assert session.execute(sa.select(lines.c.value).where(lines.c.id == 1)).all() == [(11,)]
        session.execute(sa.update(lines).where(lines.c.order_id == 1).values(name="renamed"))
        session.execute(sa.delete(Line).where(Line.order_id == 1))
        assert len(context_of(session).connections.all()) == 1


def test_a_named_lock(engines: Engines, sent: Callable[[], list[str]]) -> None:
    with routing(engines)() as session:
        for _ in range(2):
            session.lock_key("night run", lock_timeout=5)
        session.lock_key("orders", bind_arguments={"mapper": Order}, lock_timeout=5)
    assert sent() == ["primary"]


def test_the_programs_own_for_update(engines: Engines, other: LockingSession) -> None:
    with alternating(engines)() as session:
        session.scalars(sa.select(Order).where(Order.id == 1).with_for_update()).one()
        assert finds_held()(other)
        assert list(session.held_locks) == [(Order, (1,))]
        assert len(context_of(session).connections.all()) == 1


def test_at_a_gate(engines: Engines, sent: Callable[[], list[str]]) -> None:
    with routing(engines)(gate=DocumentGate()) as session:
        assert seen(session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5)) == (30, [10, 20])
    assert sent() == ["primary"]


def test_arguments_of_the_program_reach_it(engines: Engines) -> None:
    asked: list[dict[str, Any]] = []

    class Tenants(LockingSession):
        def get_bind(self, *_: Any, **arguments: Any) -> sa.Engine:
            asked.append(arguments)
            return engines.primary

    with Tenants() as session:
        statement = session.entity_set(Order, ForUpdate).where(Order.id == 1)
        session.scalars(statement, bind_arguments={"tenant": 7}).one()
    assert [one["tenant"] for one in asked if "tenant" in one] != []
    assert isinstance(asked[0]["clause"], Update)
    assert asked[0]["clause"].table is Order.__table__


# Several databases


@pytest.fixture
def tenants(engines: Engines) -> tuple[type[LockingSession], list[sa.Engine]]:
    """Return a class of sessions in the first database of the list."""
    now = [engines.first]

    class Tenants(LockingSession):
        def get_bind(self, *_: Any, **__: Any) -> sa.Engine:
            return now[0]

    return Tenants, now


@pytest.mark.parametrize("lock", [ForUpdate, SharedRead, SnapshotRead])
@pytest.mark.parametrize("ident", [1, 2])
def test_a_lock_in_another_database_for_the_same_class_is_refused(
    engines: Engines,
    sent: Callable[[], list[str]],
    tenants: tuple[type[LockingSession], list[sa.Engine]],
    lock: LockOptions,
    ident: int,
) -> None:
    cls, now = tenants
    with cls() as session:
        session.get_one_entity(Order, 1, lock)
        now[0] = engines.second
        with pytest.raises(LockMisuse, match=f"Order {ident} .* a different database"):
            session.get_entity(Order, ident, lock)
        assert sent() == ["first"]
        assert list(session.held_locks) == [(Order, (1,))]
        session.rollback()
        session.get_one_entity(Order, 1, lock)
        assert sent() == ["first", "second"]


def test_what_is_read_without_a_lock_follows_the_program(
    engines: Engines,
    sent: Callable[[], list[str]],
    tenants: tuple[type[LockingSession], list[sa.Engine]],
) -> None:
    cls, now = tenants
    with cls() as session:
        session.get_one_entity(Order, 1, ForUpdate)
        now[0] = engines.second
        assert session.scalars(sa.select(Order.total).where(Order.id == 1)).one() == 30
        assert sent() == ["first", "second"]


@pytest.mark.not_databases("sqlite")  # two connections share one file
def test_documents_in_two_databases(
    engines: Engines, sent: Callable[[], list[str]], other: LockingSession
) -> None:
    class Vertical(LockingSession):
        def get_bind(self, mapper: Any = None, clause: Any = None, **__: Any) -> sa.Engine:
            named = sa.inspect(mapper).class_ if mapper is not None else None
            return engines.first if named in (Order, Line) else engines.second

    with Vertical() as session:
        session.get_one_entity(Order, 1, ForUpdate).lines[0].value += 1
        session.get_one_entity(Contract, 1, ForUpdate).total += 1
        assert finds_held(Order)(other)
        assert finds_held(Contract)(other)
        session.commit()
    assert sent() == ["first", "second"]
    assert seen(other.get_one(Order, 1)) == (30, [11, 20])


@pytest.mark.not_databases("sqlite")  # the header's lock is the file's
def test_collections_in_another_database_are_read_there(
    engines: Engines, sent: Callable[[], list[str]]
) -> None:
    class Vertical(LockingSession):
        def get_bind(self, mapper: Any = None, clause: Any = None, **__: Any) -> sa.Engine:
            named = sa.inspect(mapper).class_ if mapper is not None else None
            return engines.second if named is Line else engines.first

    with Vertical() as session:
        order = session.get_one_entity(Order, 1, ForUpdate)
        assert sent() == ["first"]
        assert seen(order) == (30, [10, 20])
    assert sent() == ["first", "second"]


class Shards(ShardedSession, LockingSession):
    """Each row is in one of two databases."""


def sharded(engines: Engines) -> Shards:
    return Shards(
        shards={"first": engines.first, "second": engines.second},
        shard_chooser=lambda *_, **__: "first",
        identity_chooser=lambda *_, **__: ["second"],
        execute_chooser=lambda _: ["second"],
    )


LOCKS_OF_SHARDS: list[Callable[[LockingSession], object]] = [
    *(lambda session, way=way: way(session, ForUpdate) for way in (by_key, by_keys, by_set)),
    lambda session: session.get_entity(Order, 1, SnapshotRead),
    lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    lambda session: session.lock_key("night run"),
]


@pytest.mark.parametrize("lock", LOCKS_OF_SHARDS)
def test_a_sharded_session_locks_nothing(
    engines: Engines, sent: Callable[[], list[str]], lock: Callable[[LockingSession], object]
) -> None:
    with sharded(engines) as session:
        with pytest.raises(LockNotSupported, match="ShardedSession asks all shards"):
            lock(session)
        assert sent() == []
        assert not session.held_locks
        assert not session.in_transaction()


def test_a_named_lock_in_one_shard(engines: Engines, sent: Callable[[], list[str]]) -> None:
    with sharded(engines) as session:
        for shard in ("first",) if engines.first.dialect.name == "sqlite" else ("first", "second"):
            session.lock_key(f"run {shard}", bind_arguments={"shard_id": shard}, lock_timeout=5)
            assert sent()[-1] == shard


def test_a_sharded_session_reads(engines: Engines) -> None:
    with sharded(engines) as session:
        found = session.get_entity(Order, 1)
        assert found is not None
        assert found.total == 30


# Errors


class Unwilling(LockingSession):
    """Answers once, and then raises its own error."""

    answers: list[sa.Engine]

    def get_bind(self, *_: Any, **__: Any) -> sa.Engine:
        if not self.answers:
            raise RuntimeError("the program's own")
        return self.answers.pop()


def test_an_error_is_typed_though_get_bind_fails(engines: Engines, other: LockingSession) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with Unwilling() as session:
        session.answers = [engines.primary]
        with pytest.raises(LockNotAvailable, match=r"Order 1 FOR UPDATE NOWAIT on \w+: held by"):
            session.get_entity(Order, 1, ForUpdate | NoWait)


def test_an_error_before_the_lock_is_typed_too(engines: Engines) -> None:
    with Unwilling() as session:
        session.answers = [engines.primary] * 4
        account = session.get_one_entity(Account, 1)
        session.answers = []
        with pytest.raises(StaleDocument, match="Account 1"):
            session.get_entity(Account, 1, version=account.version + 1)


def test_an_error_of_get_bind_comes_out_of_the_lock(engines: Engines) -> None:
    with Unwilling() as session:
        session.answers = []
        with pytest.raises(RuntimeError, match="the program's own"):
            session.get_entity(Order, 1, ForUpdate)
        assert not session.in_transaction()
        session.answers = [engines.primary]
        assert session.get_one_entity(Order, 1, ForUpdate).total == 30


def test_a_session_with_the_get_bind_of_sqlalchemy_has_no_router(engine: sa.Engine) -> None:
    class Named(LockingSession):
        """A class of the program, without a get_bind()."""

    assert Named.get_bind is PlainSession.get_bind
    with Named(engine) as session:
        assert not context_of(session).parts.route
        assert "get_bind" not in vars(session)


ORDERS: Any = Order.__table__


def core_lock(session: LockingSession) -> None:
    session.execute(sa.select(ORDERS).where(ORDERS.c.id == 1).with_for_update()).all()


def two_classes(session: LockingSession) -> None:
    both = sa.select(Order, Customer).join(Customer, Customer.id == Order.id)
    session.execute(both.where(Order.id == 1).with_for_update()).all()


def a_key_alone(session: LockingSession) -> None:
    session.execute(sa.select(Order.id).where(Order.id == 1).with_for_update()).all()


def a_column(session: LockingSession) -> None:
    session.execute(sa.select(ORDERS.c.total).where(ORDERS.c.id == 1).with_for_update()).all()


def by_own_connection(session: LockingSession) -> None:
    bind = session.connection(bind_arguments={"clause": sa.update(Order)})
    one = sa.select(Order).where(Order.id == 1).with_for_update()
    session.scalars(one, bind_arguments={"bind": bind}).one()


READS: dict[str, Callable[[LockingSession], object]] = {
    "the class": lambda session: session.get_one(Order, 1).total,
    "its lines": lambda session: session.scalars(sa.select(Line).where(Line.order_id == 1)).all(),
    "its table": lambda session: session.execute(sa.select(ORDERS)).all(),
    "another Table object": lambda session: session.execute(
        sa.select(ORDERS.to_metadata(sa.MetaData()))
    ).all(),
    "joined to another class": lambda session: session.execute(
        sa.select(Customer, Line).join(Line, Line.order_id == Customer.id)
    ).all(),
    "in a subquery": lambda session: session.scalars(
        sa.select(Customer.name).where(Customer.id.in_(sa.select(Order.id)))
    ).all(),
    "in a union": lambda session: session.execute(
        sa.select(Order.id).union(sa.select(Order.total))
    ).all(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("lock", [core_lock, two_classes, a_key_alone, a_column, by_own_connection])
@pytest.mark.not_databases("mssql")
def test_what_was_locked_is_read_from_where_it_was_locked(
    engines: Engines, lock: Callable[[LockingSession], None], read: Callable[[LockingSession], Any]
) -> None:
    with routing(engines)() as session:
        lock(session)
        (held,) = context_of(session).connections.all()
        read(session)
        assert context_of(session).connections.all() == [held]
        assert held.engine is engines.primary


@pytest.mark.not_databases("mssql")
def test_the_second_class_of_a_select_is_read_there_too(engines: Engines) -> None:
    with routing(engines)() as session:
        two_classes(session)
        session.expire_all()
        assert session.get_one(Customer, 1).name
        assert len(context_of(session).connections.all()) == 1
