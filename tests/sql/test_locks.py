"""The text of locks: NoKey, sets in two steps, and the cache of compiled statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, Select, inspect, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sa_doclock import (
    LockingSession,
    LockMisuse,
    LockNotSupported,
    LockOptions,
    claim_each,
    document,
    with_lock,
)
from sa_doclock.core.statements import locked_entity_of
from sa_doclock.core.statements.key_selects import select_by_key, select_by_keys
from sa_doclock.core.statements.with_lock import refuse_other_lock
from tests.sql.driver import MISSING, NOTHING, Script
from tests.sql.models import Delivery, Entry, Lease, Line, Order, Voucher
from tests.sql.servers import DATABASES, SERVERS, serving
from tests.support.rows import rows

pytestmark = pytest.mark.each_value

NoKey = LockOptions.NoKey


# --------------------------------------------------------------------------------------------------
# NoKey: FOR NO KEY UPDATE on PostgreSQL, and the text of plain ForUpdate elsewhere.

ForUpdate = LockOptions.ForUpdate
MODIFIERS = (LockOptions.None_, LockOptions.NoWait, LockOptions.SkipLocked)


class Base(DeclarativeBase):
    pass


@document(no_key=True)
class Customer(Base):
    __tablename__ = "nk_customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "plain"}  # noqa: RUF012


class Company(Customer):
    __mapper_args__ = {"polymorphic_identity": "company"}  # noqa: RUF012


def _text(statement: Select[Any], database: str) -> str:
    with serving(database) as (engine, _):
        return str(statement.compile(dialect=engine.dialect))


@pytest.mark.parametrize("modifier", MODIFIERS, ids=str)
def test_postgresql_leaves_the_key_to_others(modifier: LockOptions) -> None:
    plain = _text(with_lock(select(Order), ForUpdate | modifier), "postgresql")
    no_key = _text(with_lock(select(Order), ForUpdate | NoKey | modifier), "postgresql")
    assert "FOR UPDATE OF" in plain
    assert no_key == plain.replace("FOR UPDATE OF", "FOR NO KEY UPDATE OF")


@rows("modifier", MODIFIERS, ids=str)
@rows("server", [one for one in DATABASES if one != "postgresql"])
def test_elsewhere_the_text_is_that_of_for_update(server: str, modifier: LockOptions) -> None:
    plain = _text(with_lock(select(Order), ForUpdate | modifier), server)
    assert _text(with_lock(select(Order), ForUpdate | NoKey | modifier), server) == plain


@pytest.mark.parametrize("entity", [Customer, Company])
def test_it_is_the_for_update_of_a_class_declared_so(entity: type[Customer]) -> None:
    mapper = inspect(entity)
    for statement in (
        with_lock(select(entity), ForUpdate),
        select_by_key(mapper, ForUpdate),
        select_by_keys(mapper, ForUpdate, [(1,), (2,)]),
    ):
        assert "FOR NO KEY UPDATE OF nk_customer" in _text(statement, "postgresql")
    shared = _text(with_lock(select(entity), LockOptions.SharedRead), "postgresql")
    assert "FOR SHARE OF nk_customer" in shared


def test_another_for_update_in_its_place_is_refused() -> None:
    statement = with_lock(select(Order), ForUpdate | NoKey)
    locked = locked_entity_of(statement)
    assert locked is not None
    refuse_other_lock(statement, locked)
    with pytest.raises(LockMisuse, match="has replaced the lock"):
        refuse_other_lock(statement.with_for_update(of=Order), locked)


# --------------------------------------------------------------------------------------------------
# A dirty read of one document that finds several rows fails, like its lock.


def test_a_dirty_read_of_sql_server() -> None:
    with serving("mssql") as (engine, script), LockingSession(engine) as session:
        script.handshake = {**script.handshake, "NOLOCK": [(1, 1, 30), (2, 1, 5)]}
        with pytest.raises(LockMisuse, match="has 2 rows for the key 1, such as 1, 2"):
            session.get_entity(Order, 1, LockOptions.NoLock)
    assert "NOLOCK" in script.selects[-1]


# --------------------------------------------------------------------------------------------------
# A set that reads more than the header's table: locked by keys, then read by them.
#
# The golden files have the ordinary cases; these are the edge cases.

Scripted = tuple[Engine, Script]


@pytest.fixture(params=SERVERS)
def scripted(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    """Serve each database with row locks."""
    with serving(request.param) as served:
        yield served


def _selects(scripted: Scripted, statement: Select[Any]) -> list[str]:
    engine, script = scripted
    with LockingSession(engine) as session:
        session.scalars(statement).all()
    asked = "information_schema", "pg_catalog"
    return [sql for sql in script.selects if not any(one in sql for one in asked)]


def _limited(statement: Select[Any], way: str) -> Select[Any]:
    ordered = statement.order_by(Lease.id)
    return ordered.limit(2).offset(4) if way == "limit" else ordered.fetch(2).offset(4)


@pytest.mark.parametrize("way", ["limit", "fetch"])
def test_limit_and_offset_of_joined_inheritance_are_applied_once(
    scripted: Scripted, way: str
) -> None:
    everything = with_lock(select(Lease), LockOptions.ForUpdate)
    first, *_, last = _selects(scripted, _limited(everything, way))
    assert "OFFSET" in first or "LIMIT" in first  # LIMIT 4, 2 on MySQL
    assert "OFFSET" not in last
    assert "LIMIT" not in last
    assert "FETCH" not in last
    assert "shop_lease.id IN" in last


def test_offset_over_a_join_of_the_users_own_is_refused(scripted: Scripted) -> None:
    engine, script = scripted
    joined = select(Order).join(Order.lines).order_by(Line.id).limit(2).offset(1)
    with (
        LockingSession(engine) as session,
        pytest.raises(LockNotSupported, match="with OFFSET"),
    ):
        session.scalars(with_lock(joined, LockOptions.ForUpdate))
    assert not [sql for sql in script.selects if "shop_order" in sql.partition("WHERE")[0]]


@pytest.mark.parametrize("entity", [Order, Voucher], ids=["one column", "two columns"])
def test_where_nothing_was_locked_nothing_is_read(
    scripted: Scripted, entity: type[Order | Voucher]
) -> None:
    matching: Select[Any] = (
        select(Order).join(Order.lines).where(Line.value > MISSING)
        if entity is Order
        else select(Voucher).join(Voucher.entries).where(Entry.number > MISSING)
    )
    last = _selects(scripted, with_lock(matching, LockOptions.ForUpdate))[-1]
    assert NOTHING.search(last.partition("WHERE")[2]), last


def test_a_composite_key_is_compared_column_by_column(scripted: Scripted) -> None:
    joined: Select[Any] = select(Voucher).join(Voucher.entries).where(Entry.number > 0)
    last = _selects(scripted, with_lock(joined, LockOptions.ForUpdate))[-1]
    assert "shop_voucher.year = " in last
    assert "shop_voucher.number = " in last
    assert "FOR UPDATE" not in last


def test_nowait_is_on_the_statement_that_waits(scripted: Scripted) -> None:
    engine, _ = scripted
    if engine.dialect.server_version_info == (5, 7, 44):
        with pytest.raises(LockNotSupported, match=r"needs MySQL 8\.0\.1"):
            _selects(scripted, with_lock(select(Lease), LockOptions.ForUpdate | LockOptions.NoWait))
        return
    selects = _selects(
        scripted, with_lock(select(Lease), LockOptions.ForUpdate | LockOptions.NoWait)
    )
    first = next(sql for sql in selects if "NOWAIT" in sql)
    assert "rent" not in first  # the details follow later


# --------------------------------------------------------------------------------------------------
# A lock_timeout that varies between calls adds only one statement to the engine's cache.

SharedRead = LockOptions.SharedRead
Step = Callable[[LockingSession, float], object]

WHOLE = range(5, 30)
WITH_FRACTION = [second + 0.123 for second in WHOLE]


def claim(session: LockingSession, seconds: float) -> None:
    factory = sessionmaker(session.get_bind(), class_=LockingSession)
    for one in claim_each(factory, select(Order), limit=1, lock_timeout=seconds):
        with one:
            pass


WAYS: dict[str, Step] = {
    "by key": lambda session, seconds: session.get_entity(
        Order, 1, ForUpdate, lock_timeout=seconds
    ),
    "shared": lambda session, seconds: session.get_entity(
        Order, 1, SharedRead, lock_timeout=seconds
    ),
    "by keys": lambda session, seconds: session.get_entities(
        Order, [1, 2], ForUpdate, lock_timeout=seconds
    ),
    "of two tables": lambda session, seconds: session.get_entity(
        Lease, 1, ForUpdate, lock_timeout=seconds
    ),
    "document": lambda session, seconds: session.get_document(
        Delivery, 1, ForUpdate, lock_timeout=seconds
    ),
    "set": lambda session, seconds: session.scalars(
        session.entity_set(Order, ForUpdate, lock_timeout=seconds)
    ).all(),
    "set with a hint": lambda session, seconds: session.scalars(
        session.entity_set(Order, ForUpdate, lock_timeout=seconds).prefix_with(
            "/*+ NO_ICP(o) */", dialect="mysql"
        )
    ).all(),
    "name": lambda session, seconds: session.lock_key("user:42", lock_timeout=seconds),
    "shared name": lambda session, seconds: session.lock_key(
        "user:42", lock_timeout=seconds, shared=True
    ),
    "claim": claim,
}


@pytest.mark.slow
@rows("way", WAYS)
@rows("name", DATABASES)
def test_no_limit_has_a_statement_of_its_own(name: str, way: str) -> None:
    cache: dict[object, object] = {}
    with serving(name) as (engine, _):
        engine.update_execution_options(compiled_cache=cache)
        for first, *others in (WITH_FRACTION, WHOLE):
            take(engine, way, first)
            size = len(cache)
            for seconds in others:
                take(engine, way, seconds)
            assert len(cache) == size


def take(engine: Engine, way: str, seconds: float) -> None:
    with LockingSession(engine) as session:
        try:
            WAYS[way](session, seconds)
        except LockNotSupported as error:  # SharedRead on MySQL before SQLAlchemy 2.0.45
            pytest.skip(str(error))
