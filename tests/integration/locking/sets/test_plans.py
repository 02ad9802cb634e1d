"""On SQL Server the locked resource is the header's row in its clustered index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    load_only,
    mapped_column,
    relationship,
    sessionmaker,
)

from sa_doclock import LockingSession, LockOptions, claim_each, with_lock
from tests.support.databases import Database

pytestmark = pytest.mark.databases("mssql")


# --------------------------------------------------------------------------------------------------
# The statements of test_plans.py, for which SQL Server reports its locks and plans.

#: A table's nonclustered indexes, by the name of the case.  The last covers the key and one more
#: column, all that a statement reads.
INDEXES: Final = {
    "none": (),
    "one": ("CREATE INDEX pl_one ON pl_order (total)",),
    "many": (
        "CREATE INDEX pl_one ON pl_order (total)",
        "CREATE INDEX pl_two ON pl_order (total, note)",
        "CREATE UNIQUE INDEX pl_three ON pl_order (id) INCLUDE (total)",
    ),
}
#: A session's granted row locks: the table, the index, the mode; 1 is the clustered index.
ROW_LOCKS: Final = """
    SELECT OBJECT_NAME(p.object_id), p.index_id, l.resource_type, l.request_mode, COUNT(*)
    FROM sys.dm_tran_locks AS l JOIN sys.partitions AS p
    ON p.hobt_id = l.resource_associated_entity_id
    WHERE l.request_session_id = :session AND l.request_status = 'GRANT'
    AND l.resource_database_id = DB_ID() AND l.resource_type IN ('KEY', 'RID')
    GROUP BY OBJECT_NAME(p.object_id), p.index_id, l.resource_type, l.request_mode"""
SESSION_ID: Final = "SELECT @@SPID"
SHOW_PLAN: Final = "SET SHOWPLAN_XML ON"
HIDE_PLAN: Final = "SET SHOWPLAN_XML OFF"
STATEMENTS: Final = (
    *INDEXES["many"],
    ROW_LOCKS.replace(":session", "51"),
    SESSION_ID,
    SHOW_PLAN,
    HIDE_PLAN,
)


# --------------------------------------------------------------------------------------------------
# On SQL Server, a lock covers the header's row in its clustered index.
#
# Each kind of statement runs on tables with none, one and many nonclustered indexes, small and
# large; the server reports which rows of which index the session locked.

FOR_UPDATE = LockOptions.ForUpdate
SKIP = LockOptions.ForUpdate | LockOptions.SkipLocked
CLUSTERED = 1


class Base(DeclarativeBase):
    """The tables of this file."""


class PlannedOrder(Base):
    __tablename__ = "pl_order"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    note: Mapped[str] = mapped_column(sa.String(40))
    kind: Mapped[str] = mapped_column(sa.String(10))
    lines: Mapped[list[PlannedLine]] = relationship()
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "order"}  # noqa: RUF012


class PlannedLease(PlannedOrder):
    """A header that spans two tables, with a trusted foreign key between them."""

    __tablename__ = "pl_lease"
    __mapper_args__ = {"polymorphic_identity": "lease"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(
        sa.ForeignKey("pl_order.id"), primary_key=True, autoincrement=False
    )
    rent: Mapped[int]


class PlannedLine(Base):
    __tablename__ = "pl_line"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("pl_order.id"), index=True)
    value: Mapped[int]


Way = Callable[[LockingSession], object]
#: The calls, with the number of header rows that each may lock; None: all rows that it scans.
WAYS: Mapping[str, tuple[int | None, Way]] = {
    "get_entity": (1, lambda s: s.get_entity(PlannedOrder, 2, FOR_UPDATE)),
    "get_entity, NoWait": (
        1,
        lambda s: s.get_entity(PlannedOrder, 2, FOR_UPDATE | LockOptions.NoWait),
    ),
    "get_entity, some columns": (
        1,
        lambda s: s.get_entity(
            PlannedOrder, 2, FOR_UPDATE, options=[load_only(PlannedOrder.total)]
        ),
    ),
    "get_entity, joined inheritance": (1, lambda s: s.get_entity(PlannedLease, 2, FOR_UPDATE)),
    "get_entities": (2, lambda s: s.get_entities(PlannedOrder, [2, 4], FOR_UPDATE)),
    "get_entities, joined inheritance": (
        2,
        lambda s: s.get_entities(PlannedLease, [2, 4], FOR_UPDATE),
    ),
    "join": (
        1,
        lambda s: (
            s.scalars(
                with_lock(
                    sa.select(PlannedOrder).join(PlannedOrder.lines).where(PlannedLine.id == 2),
                    FOR_UPDATE,
                )
            )
            .unique()
            .all()
        ),
    ),
    "with_for_update, by key": (
        1,
        lambda s: s.get(PlannedOrder, 2, with_for_update=True),
    ),
    "with_for_update, select": (
        None,
        lambda s: s.scalars(
            sa.select(PlannedOrder).where(PlannedOrder.total == 2).with_for_update()
        ).all(),
    ),
    "with_for_update, the key": (
        None,
        lambda s: s.scalars(
            sa.select(PlannedOrder.id).where(PlannedOrder.total == 2).with_for_update()
        ).all(),
    ),
    "with_for_update, some columns": (
        None,
        lambda s: s.scalars(
            sa.select(PlannedOrder)
            .where(PlannedOrder.total == 2)
            .options(load_only(PlannedOrder.id))
            .with_for_update()
        ).all(),
    ),
    "with_for_update, SKIP LOCKED and LIMIT": (
        None,
        lambda s: s.scalars(
            sa.select(PlannedOrder.id)
            .where(PlannedOrder.total == 2)
            .limit(1)
            .with_for_update(skip_locked=True)
        ).all(),
    ),
    "with_for_update, Core": (
        None,
        lambda s: s.execute(
            sa.select(PlannedOrder.__table__.c.id).where(PlannedOrder.total == 2).with_for_update()
        ).all(),
    ),
    "with_for_update, a join": (
        None,
        lambda s: s.scalars(
            sa.select(PlannedOrder.id)
            .join(PlannedOrder.lines)
            .where(PlannedLine.id == 2)
            .with_for_update(of=PlannedOrder)
        ).all(),
    ),
    "get_document": (1, lambda s: s.get_document(PlannedOrder, 2, FOR_UPDATE)),
    "set": (
        None,
        lambda s: s.scalars(
            s.entity_set(PlannedOrder, FOR_UPDATE).where(PlannedOrder.total == 2)
        ).all(),
    ),
    "set of columns": (
        None,
        lambda s: s.execute(
            with_lock(
                sa.select(PlannedOrder.id).where(PlannedOrder.total == 2), FOR_UPDATE, PlannedOrder
            )
        ).all(),
    ),
    "set, SkipLocked": (
        None,
        lambda s: s.scalars(
            s.entity_set(PlannedOrder, SKIP).where(PlannedOrder.total == 2).limit(1)
        ).all(),
    ),
}


@pytest.fixture(params=[10, 20_000], ids=["small", "large"])
def rows(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture(params=INDEXES)
def engine(request: pytest.FixtureRequest, database: Database, rows: int) -> sa.Engine:
    """Fill the tables, each with these nonclustered indexes."""
    database.create(Base.metadata)
    engine = database.engine()
    numbers = range(1, rows + 1)
    with engine.begin() as connection:
        for table, row in (
            (PlannedOrder.__table__, lambda n: {"total": n, "note": "a", "kind": "lease"}),
            (PlannedLease.__table__, lambda _: {"rent": 1}),
            (PlannedLine.__table__, lambda n: {"order_id": n, "value": 1}),
        ):
            connection.execute(sa.insert(table), [{"id": n, **row(n)} for n in numbers])  # type: ignore[arg-type]
        for statement in INDEXES[request.param]:
            connection.exec_driver_sql(statement)
    return engine


def row_locks(database: Database, session: LockingSession) -> list[Any]:
    """Return the session's row locks, as the server lists them."""
    number = session.connection().exec_driver_sql(SESSION_ID).scalar_one()
    with database.observer().connect() as onlooker:
        return list(onlooker.execute(sa.text(ROW_LOCKS), {"session": number}))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_headers_row_in_its_clustered_index_is_locked(
    database: Database, engine: sa.Engine, way: str
) -> None:
    expected, lock = WAYS[way]
    with LockingSession(engine) as session:
        lock(session)
        held = row_locks(database, session)
    check_rows(held, expected)


def check_rows(held: list[Any], expected: int | None) -> None:
    """Compare a session's locks with the number of headers that it may lock."""
    (found,) = [
        (kind, mode, number)
        for table, index, kind, mode, number in held
        if table == "pl_order" and index == CLUSTERED
    ]
    assert found[:2] == ("KEY", "U")
    assert found[2] == expected or (expected is None and found[2] >= 1)
    assert {table for table, *_ in held} == {"pl_order"}


@pytest.mark.slow
def test_a_claim_locks_the_headers_row(database: Database, engine: sa.Engine) -> None:
    wanted = sa.select(PlannedOrder).where(PlannedOrder.total == 2)
    for claim in claim_each(sessionmaker(engine, class_=LockingSession), wanted):
        with claim:
            check_rows(row_locks(database, claim.session), 1)


@pytest.mark.slow
def test_a_lock_by_key_seeks(engine: sa.Engine) -> None:
    """The estimated plan of the statement as sent has a seek of the header, and no scan."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    with LockingSession(engine) as session:
        session.get_one_entity(PlannedOrder, 2, FOR_UPDATE)
    sa.event.remove(engine, "before_cursor_execute", note)
    (statement,) = [one.replace("?", "2") for one in sent if "UPDLOCK" in one]
    with engine.connect() as connection:
        connection.exec_driver_sql(SHOW_PLAN)
        plan = str(connection.exec_driver_sql(statement).scalar_one())
        connection.exec_driver_sql(HIDE_PLAN)
    assert "Index Seek" in plan
    assert "Scan" not in plan
