"""Every locking statement locks the row of the header: an entry of an index alone is not enough.

The model of model.py follows sentences of Microsoft's documentation. tests/integration/locking/sets/test_plans.py
asks a real server for the plans of its optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import Engine, Index, column, func, literal, select, table, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import (
    Bundle,
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    defer,
    load_only,
    mapped_column,
    sessionmaker,
)

from lab.tds.answers import Refused
from lab.tds.model import ROW, Locked, Table, locked
from lab.tds.server import TDSServer
from sa_doclock import LockingSession, LockNotSupported, LockOptions, claim_each, with_lock
from tests.sql.models import Contract, Fault, Lease, Line, Order, Ticket

pytestmark = pytest.mark.each_value

ORDER, CONTRACT, LEASE, LINE, TICKET = (
    "shop_order",
    "shop_contract",
    "shop_lease",
    "shop_line",
    "shop_ticket",
)
ORDERS = frozenset({"id", "customer_id", "total"})
#: Indexes that cover the statements that read the key and a part of the columns.
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
    "adopted": (ORDER, lambda s: s.scalars(select(Order).with_for_update()).all()),
    "adopted, get()": (ORDER, lambda s: s.get(Order, 1, with_for_update=True)),
    "adopted, refresh()": (ORDER, lambda s: s.refresh(s.get_one(Order, 1), with_for_update=True)),
    "adopted, refresh() of one attribute": (
        ORDER,
        lambda s: s.refresh(s.get_one(Order, 1), ["total"], with_for_update=True),
    ),
    "adopted, key": (
        ORDER,
        lambda s: s.scalars(select(Order.id).where(Order.total > 0).with_for_update()).all(),
    ),
    "adopted, key in a Bundle": (
        ORDER,
        lambda s: s.execute(select(Bundle("b", Order.id)).with_for_update()).all(),
    ),
    "adopted, key of an alias": (
        ORDER,
        lambda s: s.scalars(select(aliased(Order, name="o").id).with_for_update()).all(),
    ),
    "adopted, load_only()": (
        ORDER,
        lambda s: s.scalars(select(Order).options(load_only(Order.id)).with_for_update()).all(),
    ),
    "adopted, defer()": (
        ORDER,
        lambda s: s.scalars(select(Order).options(defer(Order.total)).with_for_update()).all(),
    ),
    "adopted, SKIP LOCKED and LIMIT": (
        ORDER,
        lambda s: s.scalars(
            select(Order.id).order_by(Order.id).limit(1).with_for_update(skip_locked=True)
        ).all(),
    ),
    "adopted, Core": (
        ORDER,
        lambda s: s.execute(select(Order.__table__.c.id).with_for_update()).all(),
    ),
    "adopted, Core alias": (
        ORDER,
        lambda s: s.execute(select(Order.__table__.alias("o").c.id).with_for_update()).all(),
    ),
    "adopted, a join of which the key is read": (
        ORDER,
        lambda s: s.scalars(
            select(Order.id)
            .join(Order.lines)
            .where(Line.value > 0)
            .with_for_update(of=Order.__table__)
        ).all(),
    ),
    "adopted, Query": (ORDER, lambda s: s.query(Order).with_for_update().all()),
    "adopted, Query with load_only()": (
        ORDER,
        lambda s: s.query(Order).options(load_only(Order.id)).with_for_update().all(),
    ),
    "adopted, Query of the key": (
        ORDER,
        lambda s: s.query(Order.id).with_for_update().all(),
    ),
    "adopted, joined inheritance": (
        CONTRACT,
        lambda s: s.scalars(
            select(Lease).options(load_only(Lease.rent)).with_for_update(of=Contract.__table__)
        ).all(),
    ),
    "adopted, key of joined inheritance": (
        CONTRACT,
        lambda s: s.scalars(select(Lease.id).with_for_update(of=Contract.__table__)).all(),
    ),
    "adopted, single-table inheritance": (
        TICKET,
        lambda s: s.scalars(select(Fault).with_for_update()).all(),
    ),
    "adopted, root of single-table inheritance": (
        TICKET,
        lambda s: s.scalars(select(Ticket).with_for_update()).all(),
    ),
    "adopted, from_statement()": (
        ORDER,
        lambda s: s.scalars(
            select(Order).from_statement(select(Order.__table__.c.id).with_for_update())
        ).all(),
    ),
    "claims": (ORDER, lambda s: _claim(s, select(Order).where(Order.total > 0))),
    "claims, some columns": (
        ORDER,
        lambda s: _claim(s, select(Order).options(load_only(Order.id))),
    ),
    "claims, joined inheritance": (CONTRACT, lambda s: _claim(s, select(Lease))),
}
BY_KEY = [name for name in WAYS if not name.startswith(("set", "adopted"))]


def _claim(session: LockingSession, statement: Any) -> None:
    engine: Any = session.get_bind()
    for claim in claim_each(sessionmaker(engine, class_=LockingSession), statement, limit=1):
        with claim:
            pass


@pytest.fixture
def wire(wire: TDSServer) -> Iterator[TDSServer]:
    """Make the server track the locks of these tables."""
    wire.database.tables = TABLES
    return wire  # type: ignore[return-value]


def seen(wire: TDSServer) -> set[Locked]:
    return {one for session in wire.sessions for one in session.all_locked}


@pytest.mark.parametrize("way", WAYS)
def test_the_row_itself_is_locked(engine: Engine, wire: TDSServer, way: str) -> None:
    locked_table, act = WAYS[way]
    with LockingSession(engine) as session:
        act(session)
    assert {(one.table, one.path) for one in seen(wire)} == {(locked_table, ROW)}


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


@pytest.mark.parametrize(
    ("statement", "path"), [(select(Order), ROW), (select(Order.id), "ix")], ids=["class", "key"]
)
def test_a_plain_session_locks_rows_where_the_select_reads_all_columns(
    engine: Engine, wire: TDSServer, statement: Any, path: str
) -> None:
    with Session(engine) as plain:
        plain.execute(with_lock(statement, FOR_UPDATE)).all()
    assert {one.path for one in seen(wire)} == {path}


# Tables with an index on all columns: no choice of columns distinguishes the row from its index entry.


class Base(DeclarativeBase):
    pass


class Job(Base):
    __tablename__ = "tds_job"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(index=True)


class Stamp(Base):
    """An index INCLUDEs the columns that it does not begin with."""

    __tablename__ = "tds_stamp"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str]
    total: Mapped[int]
    __table_args__ = (Index("stamp_by_state", "state", mssql_include=["total"]),)


class Twin(Base):
    """An index is as good as the primary key's own."""

    __tablename__ = "tds_twin"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str]
    __table_args__ = (Index("twin_by_key", "id", "state"),)


IN_INDEX = {
    "tds_job": Table(frozenset({"id", "state"}), ("id",), {"ix": (("state",), frozenset())}),
    "tds_stamp": Table(
        frozenset({"id", "state", "total"}), ("id",), {"ix": (("state",), frozenset({"total"}))}
    ),
    "tds_twin": Table(frozenset({"id", "state"}), ("id",), {"ix": (("id", "state"), frozenset())}),
}
each_class = pytest.mark.parametrize("kind", [Job, Stamp])


@each_class
@pytest.mark.parametrize(
    "act",
    [
        lambda s, kind: s.get_entity(kind, 1, FOR_UPDATE),
        lambda s, kind: s.scalars(s.entity_set(kind, FOR_UPDATE).where(kind.state == "new")).all(),
        lambda s, kind: _claim(s, select(kind).where(kind.state == "new")),
        lambda s, kind: s.get(kind, 1, with_for_update=True),
        lambda s, kind: s.scalars(select(kind.id).where(kind.id == 1).with_for_update()).all(),
    ],
    ids=["key", "set", "claim", "get()", "select by key"],
)
def test_where_an_index_has_all_columns_the_rows_are_locked_by_key(
    engine: Engine, wire: TDSServer, kind: Any, act: Callable[[LockingSession, Any], object]
) -> None:
    wire.database.tables = IN_INDEX
    with LockingSession(engine) as session:
        act(session, kind)
    assert {(one.table, one.path) for one in seen(wire)} == {(kind.__tablename__, ROW)}


@each_class
@pytest.mark.parametrize(
    "statement",
    [
        lambda kind: select(kind).where(kind.state == "new"),
        lambda kind: select(kind.id).where(kind.state == "new").limit(1),
        lambda kind: select(kind.__table__),
        lambda kind: select(literal(1)).select_from(kind),
    ],
    ids=["class", "key", "Core", "literal"],
)
def test_where_an_index_has_all_columns_a_lock_of_other_rows_is_refused(
    engine: Engine, wire: TDSServer, kind: Any, statement: Callable[[Any], Any]
) -> None:
    wire.database.tables = IN_INDEX
    with LockingSession(engine) as session:
        with pytest.raises(LockNotSupported, match=r"entries of an index of 'tds_\w+'"):
            session.execute(statement(kind).with_for_update(skip_locked=True))
        assert not session.held_locks
    assert not seen(wire)


@pytest.mark.parametrize(
    "act",
    [
        lambda s: s.get_entity(Twin, 1, FOR_UPDATE),
        lambda s: s.scalars(s.entity_set(Twin, FOR_UPDATE)).all(),
        lambda s: s.get(Twin, 1, with_for_update=True),
    ],
)
def test_an_index_like_that_of_the_key_is_refused(
    engine: Engine, wire: TDSServer, act: Way
) -> None:
    wire.database.tables = IN_INDEX
    with LockingSession(engine) as session, pytest.raises(LockNotSupported, match="twin_by_key"):
        act(session)


@pytest.mark.parametrize(
    "statement",
    [
        select(Order.id).distinct(),
        select(Order.id).group_by(Order.id),
        select(func.max(Order.id)),
        select(func.count()).select_from(Order),
        select(text("max(id)")).select_from(Order.__table__),
        select(table("shop_order", column("id"))),
    ],
    ids=str,
)
def test_what_locks_no_rows_for_certain_is_refused(
    session: LockingSession, wire: TDSServer, statement: Any
) -> None:
    with pytest.raises(LockNotSupported):
        session.execute(statement.with_for_update())
    assert not session.held_locks
    assert not seen(wire)


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda s: s.execute(select(Order.id).with_for_update()).all(), [(1,)]),
        (lambda s: s.execute(select(Order.id).with_for_update()).keys(), ["id"]),
        (lambda s: s.execute(select(Order.__table__.c.id).with_for_update()).all(), [(1,)]),
        (lambda s: s.scalars(select(Order.id).with_for_update()).all(), [1]),
        (lambda s: s.query(Order.id).with_for_update().all(), [(1,)]),
        (lambda s: s.query(Order.id).with_for_update().scalar(), 1),
        (lambda s: [type(one) for one in s.query(Ticket).with_for_update()], [Fault]),
        (lambda s: [type(one) for one in s.scalars(select(Ticket).with_for_update())], [Fault]),
        (
            lambda s: [
                len(row) for row in s.query(Ticket).only_return_tuples(value=True).with_for_update()
            ],
            [1],
        ),
        (lambda s: type(s.query(Ticket).with_for_update().one()), Fault),
        (
            lambda s: [
                len(row) for row in s.execute(select(aliased(Order), Line).with_for_update(of=Line))
            ],
            [2],
        ),
        (
            lambda s: [
                list(part)
                for part in s.execute(
                    select(Order.id).with_for_update().execution_options(yield_per=1)
                ).partitions()
            ],
            [[(1,)]],
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:SELECT statement has a cartesian product")
def test_the_program_gets_what_it_has_asked_for(
    session: LockingSession, read: Callable[[LockingSession], object], found: object
) -> None:
    read_now = read(session)
    assert (list(read_now) if isinstance(found, list) else read_now) == found  # type: ignore[call-overload]


# The rules of the model, on the earlier statements without all columns and FORCESEEK.


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
