"""Every statement that locks, locks the header's row: not an entry of an index, and not nothing.

By the model of plans.py, which is made of sentences of Microsoft's documentation.  What a real
optimizer does is asked of a real server in tests/integration/locking/sets/test_plans.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import defer, load_only, sessionmaker

from sa_doclock import LockingSession, LockNotSupported, LockOptions, claim_each, with_lock
from tests.sql.models import Fault, Lease, Line, Order
from tests.sql.tds.errors import Refused
from tests.sql.tds.plans import ROW, Locked, Table, locked
from tests.sql.tds.server import TDSServer

ORDER, CONTRACT, LEASE, LINE, TICKET = (
    "shop_order",
    "shop_contract",
    "shop_lease",
    "shop_line",
    "shop_ticket",
)
ORDERS = frozenset({"id", "customer_id", "total"})
#: What covers the statements that read the key, and a part of the columns.
COVERING = {"ix": (("id",), frozenset({"total"})), "by_total": (("total",), frozenset[str]())}
TABLES = {
    ORDER: Table(ORDERS, ("id",), COVERING),
    CONTRACT: Table(frozenset({"id", "kind", "total"}), ("id",), COVERING),
    LEASE: Table(frozenset({"id", "rent"}), ("id",), references={"id": CONTRACT}),
    LINE: Table(frozenset({"id", "order_id", "value"}), ("id",), references={"order_id": ORDER}),
    TICKET: Table(frozenset({"id", "kind", "total", "severity"}), ("id",), COVERING),
}
FOR_UPDATE, SKIP = LockOptions.ForUpdate, LockOptions.ForUpdate | LockOptions.SkipLocked
NO_WAIT = LockOptions.ForUpdate | LockOptions.NoWait

Way = Callable[[LockingSession], object]
WAYS: Mapping[str, tuple[str, Way]] = {
    "by key": (ORDER, lambda s: s.get_entity(Order, 1, FOR_UPDATE)),
    "by key, NoWait": (ORDER, lambda s: s.get_entity(Order, 1, NO_WAIT)),
    "by key, with a limit": (ORDER, lambda s: s.get_entity(Order, 1, FOR_UPDATE, lock_timeout=1)),
    "by key, some columns": (
        ORDER,
        lambda s: s.get_entity(Order, 1, FOR_UPDATE, options=[load_only(Order.total)]),
    ),
    "by key, joined inheritance": (CONTRACT, lambda s: s.get_entity(Lease, 1, FOR_UPDATE)),
    "by key, single-table inheritance": (TICKET, lambda s: s.get_entity(Fault, 1, FOR_UPDATE)),
    "by keys": (ORDER, lambda s: s.get_entities(Order, [1, 2], FOR_UPDATE)),
    "by keys, joined inheritance": (CONTRACT, lambda s: s.get_entities(Lease, [1, 2], FOR_UPDATE)),
    "set": (ORDER, lambda s: s.scalars(s.entity_set(Order, FOR_UPDATE)).all()),
    "set, SkipLocked": (ORDER, lambda s: s.scalars(s.entity_set(Order, SKIP)).all()),
    "set, some columns": (
        ORDER,
        lambda s: s.scalars(s.entity_set(Order, FOR_UPDATE).options(defer(Order.total))).all(),
    ),
    "set, single-table inheritance": (
        TICKET,
        lambda s: s.scalars(s.entity_set(Fault, FOR_UPDATE)).all(),
    ),
    "set of columns": (
        ORDER,
        lambda s: s.execute(with_lock(select(Order.total), FOR_UPDATE, Order)).all(),
    ),
    "set, joined inheritance": (
        CONTRACT,
        lambda s: s.scalars(s.entity_set(Lease, FOR_UPDATE)).all(),
    ),
    "set, joined inheritance, SkipLocked, LIMIT": (
        CONTRACT,
        lambda s: s.scalars(s.entity_set(Lease, SKIP).order_by(Lease.id).limit(1)).all(),
    ),
    "join": (
        ORDER,
        lambda s: (
            s.scalars(with_lock(select(Order).join(Order.lines).where(Line.value > 0), FOR_UPDATE))
            .unique()
            .all()
        ),
    ),
    "claims": (ORDER, lambda s: _claim(s, select(Order).where(Order.total > 0))),
    "claims, some columns": (
        ORDER,
        lambda s: _claim(s, select(Order).options(load_only(Order.id))),
    ),
    "claims, joined inheritance": (CONTRACT, lambda s: _claim(s, select(Lease))),
}
BY_KEY = [name for name in WAYS if not name.startswith("set")]


def _claim(session: LockingSession, statement: Any) -> None:
    engine: Any = session.get_bind()
    for claim in claim_each(sessionmaker(engine, class_=LockingSession), statement, limit=1):
        with claim:
            pass


@pytest.fixture
def wire(wire: TDSServer) -> Iterator[TDSServer]:
    """Have the server follow the locks of these tables."""
    wire.database.tables = TABLES
    return wire  # type: ignore[return-value]


def seen(wire: TDSServer) -> set[Locked]:
    return {one for session in wire.sessions for one in session.all_locked}


@pytest.mark.parametrize("way", WAYS)
def test_the_row_itself_is_locked(engine: Engine, wire: TDSServer, way: str) -> None:
    table, act = WAYS[way]
    with LockingSession(engine) as session:
        act(session)
    assert {(one.table, one.path) for one in seen(wire)} == {(table, ROW)}


@pytest.mark.parametrize("way", BY_KEY)
def test_by_key_no_small_table_is_scanned(engine: Engine, wire: TDSServer, way: str) -> None:
    wire.database.tables = {
        name: Table(one.columns, one.key, one.indexes, one.references, small=True)
        for name, one in TABLES.items()
    }
    with LockingSession(engine) as session:
        WAYS[way][1](session)
    assert {one.by_scan for one in seen(wire)} == {False}


def test_a_key_without_an_index_is_refused(engine: Engine, wire: TDSServer) -> None:
    wire.database.tables = {ORDER: Table(ORDERS, ("id",), key_is_indexed=False)}
    with (
        LockingSession(engine) as session,
        pytest.raises(LockNotSupported, match="no index begins with the mapped primary key"),
    ):
        session.get_entity(Order, 1, FOR_UPDATE)


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("lock", [SKIP, LockOptions.SharedRead | LockOptions.SkipLocked])
def test_skip_locked_is_taken_with_read_committed_snapshot_too(
    session: LockingSession, wire: TDSServer, lock: LockOptions, *, snapshot: bool
) -> None:
    wire.database.read_committed_snapshot = snapshot
    assert session.scalars(session.entity_set(Order, lock)).all()
    session.rollback()
    assert session.scalars(session.entity_set(Lease, lock)).all()


# The rules of the model: what the statements were, before they had all columns and FORCESEEK.


@pytest.mark.parametrize(
    ("sql", "locks"),
    [
        (
            (
                "SELECT shop_lease.id FROM shop_contract WITH (UPDLOCK, ROWLOCK) "
                "JOIN shop_lease ON shop_contract.id = shop_lease.id"
            ),
            set[Locked](),
        ),
        (
            (
                "SELECT shop_order.id FROM shop_order WITH (UPDLOCK, ROWLOCK) "
                "JOIN shop_line ON shop_order.id = shop_line.order_id WHERE shop_line.value > @P1"
            ),
            set[Locked](),
        ),
        (
            (
                "SELECT shop_contract.id FROM shop_contract WITH (UPDLOCK, ROWLOCK) "
                "WHERE shop_contract.id = @P1"
            ),
            {Locked(CONTRACT, "ix")},
        ),
        (
            "SELECT shop_order.total FROM shop_order WITH (UPDLOCK, ROWLOCK)",
            {Locked(ORDER, "ix", by_scan=True)},
        ),
        (
            (
                "SELECT shop_order.id, shop_order.customer_id, shop_order.total FROM shop_order "
                "WITH (UPDLOCK, ROWLOCK) WHERE shop_order.id = @P1"
            ),
            {Locked(ORDER, ROW)},
        ),
    ],
)
def test_what_the_model_says_of_a_statement(sql: str, locks: set[Locked]) -> None:
    assert set(locked(sql, TABLES)) == locks


def test_the_model_scans_a_small_table_unless_it_is_set_not_to() -> None:
    small = {ORDER: Table(ORDERS, ("id",), small=True)}
    sql = (
        "SELECT shop_order.id, shop_order.customer_id, shop_order.total FROM shop_order "
        "WITH (UPDLOCK, ROWLOCK{}) WHERE shop_order.id IN (@P1, @P2)"
    )
    assert set(locked(sql.format(""), small)) == {Locked(ORDER, ROW, by_scan=True)}
    assert set(locked(sql.format(", FORCESEEK"), small)) == {Locked(ORDER, ROW)}


def test_the_model_has_no_plan_where_there_is_no_index() -> None:
    heap = {ORDER: Table(ORDERS, ("id",), key_is_indexed=False)}
    sql = "SELECT shop_order.id FROM shop_order WITH (UPDLOCK, FORCESEEK) WHERE shop_order.id = @P1"
    with pytest.raises(Refused, match="8622"):
        list(locked(sql, heap))


def test_the_model_refuses_to_skip_row_versions(engine: Engine, wire: TDSServer) -> None:
    wire.database.read_committed_snapshot = True
    orders = select(Order.__table__).with_hint(Order.__table__, "WITH (UPDLOCK, ROWLOCK, READPAST)")
    with engine.connect() as connection, pytest.raises(DBAPIError, match=r"\(650\)"):
        connection.execute(orders)
