"""A set that reads more than the header's table: locked by its keys, then read by them.

The rows of the golden files have the ordinary case; here are the edges of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, Select, select

from sa_doclock import LockingSession, LockNotSupported, LockOptions, with_lock
from tests.sql.models import Entry, Lease, Line, Order, Voucher
from tests.sql.script import MISSING, NOTHING, Script
from tests.sql.servers import SERVERS, serving

Scripted = tuple[Engine, Script]


@pytest.fixture(params=SERVERS)
def scripted(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    """Serve each database that has row locks."""
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
    assert "rent" not in first  # the details come later
