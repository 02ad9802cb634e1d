"""with_for_update() locks rows of every table in its FROM clause, or of those that ``of`` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, joinedload, mapped_column, relationship

from lab.running.kept import KeptTables
from sa_doclock import LockingSession, LockNotSupported, LockOptions, UnsavedChanges, with_lock
from tests.integration.locking.steps import add_ten, finds_held, seen
from tests.support.databases import Database
from tests.support.models import Customer, Lease, Line, Order

pytestmark = [pytest.mark.each_value, pytest.mark.read_committed]


ORDERS: Any = Order.__table__
LINES: Any = Line.__table__
CUSTOMERS: Any = Customer.__table__


class Base(DeclarativeBase):
    """Tables of this file."""


class Old(Base):
    """A table without row locks."""

    __tablename__ = "lk_old_part"
    __table_args__ = {"mysql_engine": "MyISAM", "mariadb_engine": "MyISAM"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


class Header(Base):
    """A class mapped on the orders, with parts in that table."""

    __table__ = ORDERS.to_metadata(Base.metadata)
    old: Mapped[list[Old]] = relationship(
        primaryjoin=lambda: sa.orm.foreign(Old.order_id) == Header.id, viewonly=True
    )
    id: Mapped[int]


OLD: Any = Old.__table__
MET = Old.order_id == Order.id
LIGHT = sa.table("lk_old_part", sa.column("id"), sa.column("order_id"))

#: Each reads order 1, and a row of the other table in its own FROM clause.
WITHOUT_ROW_LOCKS: dict[str, Callable[[], Any]] = {
    "a join": lambda: sa.select(Order.id).join(Old, MET),
    "a join of a class": lambda: sa.select(Order).join(Old, MET),
    "an outer join": lambda: sa.select(Order, Old).outerjoin(Old, MET),
    "a second FROM": lambda: sa.select(Order).where(MET),
    "of": lambda: sa.select(Order.id).join(Old, MET),
    "an alias": lambda: sa.select(Order).join(other := aliased(Old), other.order_id == Order.id),
    "tables": lambda: sa.select(ORDERS.c.id).join(OLD, OLD.c.order_id == ORDERS.c.id),
    "a join in a join": lambda: (
        sa.select(LINES.c.id)
        .select_from(LINES.join(ORDERS.join(OLD, OLD.c.order_id == ORDERS.c.id), sa.true()))
        .where(LINES.c.order_id == ORDERS.c.id)
    ),
    "table()": lambda: sa.select(Order).join(LIGHT, LIGHT.c.order_id == Order.id),
    "a loader option": lambda: sa.select(Header).options(joinedload(Header.old)),
    "beside a subquery": lambda: sa.select(Old.id).join(
        found := sa.select(Order.id).subquery(), found.c.id == Old.order_id
    ),
}

DOORS: dict[str, Callable[[LockingSession, sa.Select[Any]], Any]] = {
    "execute": lambda session, locking: session.execute(locking).unique().all(),
    "streamed": lambda session, locking: (
        session.execute(locking, execution_options={"stream_results": True}).unique().all()
    ),
    "connection": lambda session, locking: session.connection().execute(locking).all(),
    "within": lambda session, locking: session.execute(
        sa.select(sa.literal(1)).where(locking.exists())
    ).all(),
}


def fill(connection: sa.Connection) -> None:
    connection.execute(sa.insert(OLD).values(id=1, order_id=1))


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptTables]:
    """Keep the tables until the last test of this file ends."""
    tables = KeptTables(_alone(OLD), fill)
    yield tables
    tables.close()


@pytest.fixture
def old(database: Database, kept: KeptTables) -> None:
    """Insert one row into the table."""
    kept.put_rows(database)


def _alone(table: sa.Table) -> sa.MetaData:
    metadata = sa.MetaData()
    table.to_metadata(metadata)
    return metadata


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", WITHOUT_ROW_LOCKS)
def test_one_without_row_locks_is_refused(session: LockingSession, name: str, door: str) -> None:
    select = WITHOUT_ROW_LOCKS[name]()
    locking = select.with_for_update(of=[Order, Old] if name == "of" else None)
    with pytest.raises(LockNotSupported, match="'lk_old_part' is stored by MyISAM"):
        DOORS[door](session, locking)
    assert not session.held_locks
    session.rollback()
    assert DOORS[door](session, select)  # without a lock


@pytest.mark.databases("mysql")  # MariaDB locks all tables, whatever of= names
@pytest.mark.usefixtures("old")
def test_of_leaves_it_out(session: LockingSession, other: LockingSession) -> None:
    session.scalars(sa.select(Order).join(Old, MET).with_for_update(of=Order)).one()
    assert session.held_locks.keys() >= {(Order, (1,))}
    assert finds_held()(other)


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    "locking",
    [
        sa.select(Order).where(sa.select(Old.id).where(MET).exists()),
        sa.select(Order).where(Order.id.in_(sa.select(Old.order_id))),
        sa.select(Order).join(sa.select(Old.order_id).subquery(), sa.true()),
    ],
    ids=["EXISTS", "IN", "a subquery"],
)
def test_what_the_server_does_not_lock_may_be_without_row_locks(
    session: LockingSession, other: LockingSession, locking: sa.Select[Any]
) -> None:
    assert session.scalars(locking.where(Order.id == 1).with_for_update()).one().id == 1
    assert finds_held()(other)


VIEWS: dict[str, tuple[str, ...]] = {
    "of a table without row locks": ("SELECT id, order_id FROM lk_old_part",),
    "of a view of it": ("SELECT id, order_id FROM lk_old_part", "SELECT * FROM lk_old_view_1"),
    "of a join with it": (
        "SELECT l.id, l.order_id FROM lk_line AS l JOIN lk_old_part AS o ON o.id = l.id",
    ),
    "of one that is copied": (
        "SELECT order_id AS id, MAX(order_id) AS order_id FROM lk_line GROUP BY order_id",
        "SELECT * FROM lk_old_view_1",
    ),
}

VIEWS_OF_ORDERS: dict[str, str] = {
    "EXISTS": "SELECT id FROM lk_order AS o WHERE EXISTS (SELECT 1 FROM lk_old_part WHERE order_id = o.id)",
    "IN": "SELECT id FROM lk_order WHERE id IN (SELECT order_id FROM lk_old_part)",
    "a column": "SELECT id, (SELECT MAX(id) FROM lk_old_part) AS old FROM lk_order WHERE id = 1",
    "a subquery": (
        "SELECT o.id FROM lk_order AS o JOIN (SELECT MAX(order_id) AS id FROM lk_old_part) AS old "
        "ON old.id = o.id"
    ),
    "a text": "SELECT id, 'it''s (select from `doclock`.`lk_old_part`' AS old FROM lk_order WHERE id = 1",
}
VIEWS |= {name: (definition,) for name, definition in VIEWS_OF_ORDERS.items()}


@pytest.fixture
def view(engine: sa.Engine, request: pytest.FixtureRequest) -> Iterator[sa.TableClause]:
    """Create the views of this name, each on the previous one; yield the last."""
    names = [f"lk_old_view_{number + 1}" for number in range(len(VIEWS[request.param]))]
    with engine.begin() as connection:
        for name, definition in zip(names, VIEWS[request.param], strict=True):
            connection.exec_driver_sql(f"CREATE OR REPLACE VIEW {name} AS {definition}")
    yield sa.Table(names[-1], sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    with engine.begin() as connection:
        for name in reversed(names):
            connection.exec_driver_sql(f"DROP VIEW {name}")


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    "view", [name for name in VIEWS if name not in VIEWS_OF_ORDERS], indirect=True
)
def test_a_view_that_locks_less_than_it_shows_is_refused(
    session: LockingSession, view: sa.Table
) -> None:
    with pytest.raises(LockNotSupported, match=r"is stored by MyISAM|is a view"):
        session.execute(sa.select(view).with_for_update()).all()


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("view", VIEWS_OF_ORDERS, indirect=True)
def test_a_view_may_read_a_table_without_row_locks_in_a_subquery(
    session: LockingSession, other: LockingSession, view: sa.Table
) -> None:
    assert session.execute(sa.select(view).with_for_update()).all()
    assert finds_held()(other)
    session.rollback()  # the view is dropped next


@pytest.mark.databases("mariadb")  # MySQL itself refuses FOR UPDATE of information_schema
def test_the_tables_of_information_schema_need_no_row_locks(
    session: LockingSession, other: LockingSession
) -> None:
    engines = sa.table("engines", sa.column("engine"), schema="information_schema")
    joined = sa.select(Order).join(engines, engines.c.engine == "InnoDB").where(Order.id == 1)
    assert session.scalars(joined.with_for_update()).one()
    assert finds_held()(other)


@pytest.mark.databases("mariadb")  # MySQL does not list them
def test_a_temporary_table_needs_no_row_locks(
    session: LockingSession, other: LockingSession
) -> None:
    ids = sa.table("lk_ids", sa.column("id"))
    session.connection().exec_driver_sql(
        "CREATE TEMPORARY TABLE lk_ids (id INTEGER) ENGINE=MEMORY AS SELECT 1 AS id"
    )
    assert session.scalars(sa.select(Order).join(ids, ids.c.id == Order.id).with_for_update()).all()
    assert finds_held()(other)


LATERAL = sa.select(ORDERS.c.id).where(ORDERS.c.id == 1).lateral()
NOTHING_LOCKED: dict[str, sa.Select[Any]] = {
    "a CTE": sa.select(sa.select(ORDERS.c.id).where(ORDERS.c.id == 1).cte()),
    "VALUES": sa.select(sa.values(sa.column("id", sa.Integer), name="v").data([(1,)])),
}


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("door", ["execute", "streamed", "connection", "within"])
@pytest.mark.parametrize("name", NOTHING_LOCKED)
def test_one_of_no_table_is_refused_wherever_it_stands(
    session: LockingSession, name: str, door: str
) -> None:
    with pytest.raises(LockNotSupported, match="the rows of a subquery or CTE"):
        DOORS[door](session, NOTHING_LOCKED[name].with_for_update())


#: Without columns SQL Server may lock index entries, and a text() accepts no table hint.
_NO_HINT = ("text()", "table()")
LOCKED: dict[str, sa.Select[Any]] = {
    "text()": sa.select(sa.literal_column("id")).select_from(sa.text("lk_order")),
    "table()": sa.select(sa.column("id")).select_from(sa.table("lk_order")),
    "a join in a join": sa.select(ORDERS.c.id).select_from(
        CUSTOMERS.join(
            LINES.join(ORDERS, LINES.c.order_id == ORDERS.c.id), CUSTOMERS.c.id == ORDERS.c.id
        )
    ),
}


@pytest.mark.parametrize("name", LOCKED)
def test_a_table_is_locked_in_whatever_words(
    session: LockingSession, other: LockingSession, name: str
) -> None:
    if name in _NO_HINT and session.get_bind().dialect.name == "mssql":
        with pytest.raises(LockNotSupported):
            session.execute(LOCKED[name].with_for_update())
        return
    assert session.execute(LOCKED[name].with_for_update()).all()
    assert finds_held()(other)


def test_the_keys_of_a_join_in_a_join_are_listed(session: LockingSession) -> None:
    session.execute(LOCKED["a join in a join"].with_for_update()).all()
    assert (Order, (1,)) in session.held_locks


def test_with_lock_finds_a_joined_class_in_a_join() -> None:
    joined = sa.select(Order).join(Lease, sa.true())
    assert with_lock(joined, LockOptions.ForUpdate, Lease) is not joined


@pytest.mark.databases("postgresql")
def test_the_rows_of_a_lateral_subquery_are_locked(
    session: LockingSession, other: LockingSession
) -> None:
    assert session.execute(sa.select(LATERAL).with_for_update()).all()
    assert finds_held()(other)


@pytest.mark.databases("postgresql")
def test_the_rows_of_a_sample_are_locked(session: LockingSession, other: LockingSession) -> None:
    sample = ORDERS.tablesample(sa.func.system(100))
    assert session.execute(sa.select(sample.c.id).with_for_update()).all()
    assert finds_held()(other)
    assert (Order, (1,)) in session.held_locks


# --------------------------------------------------------------------------------------------------
# with_for_update() of another Table object for a mapped table: matched by schema and name.

Session = LockingSession
Make = Callable[[Session], Any]


def light(_: Session, schema: str | None = None) -> Any:
    return sa.table(ORDERS.name, *(sa.column(one.name) for one in ORDERS.columns), schema=schema)


def schema_of(session: Session) -> str:
    return str(session.connection().dialect.default_schema_name)


OBJECTS: dict[str, Make] = {
    "to_metadata()": lambda _: ORDERS.to_metadata(sa.MetaData()),
    "reflected": lambda s: sa.Table(ORDERS.name, sa.MetaData(), autoload_with=s.connection()),
    "table()": light,
    "the default schema": lambda s: light(s, schema_of(s)),
    "of this MetaData": lambda s: sa.Table(
        ORDERS.name, ORDERS.metadata, sa.Column("id", sa.Integer), schema=schema_of(s)
    ),
    "alias": lambda s: light(s).alias("o"),
}


@pytest.fixture(params=list(OBJECTS.values()), ids=list(OBJECTS))
def orders(request: pytest.FixtureRequest, session: Session) -> Iterator[Any]:
    """Make another Table object for the orders."""
    made = request.param(session)
    session.commit()
    yield made
    if isinstance(made, sa.Table) and made.metadata is ORDERS.metadata:
        ORDERS.metadata.remove(made)


def test_no_update_is_lost(session: Session, other: Session, orders: Any) -> None:
    session.expire_on_commit = False
    order = session.get_one(Order, 1)
    lines = list(order.lines)
    assert seen(order) == (30, [10, 20])
    session.commit()
    add_ten(other)
    other.commit()
    session.execute(sa.select(orders.c.id).where(orders.c.id == 1).with_for_update()).all()
    assert (Order, (1,)) in session.held_locks
    assert seen(order) == (40, [20, 20])
    assert lines


def test_a_pending_change_is_refused(session: Session, orders: Any) -> None:
    statement = sa.select(orders.c.id).where(orders.c.id == 1).with_for_update()
    session.get_one(Order, 1).total = 1
    with session.no_autoflush, pytest.raises(UnsavedChanges):
        session.execute(statement)


def test_half_of_the_row_without_its_key_is_not_listed(session: Session) -> None:
    orders = light(session)
    session.execute(sa.select(orders.c.total).where(orders.c.id == 1).with_for_update()).all()
    assert not session.held_locks


@pytest.fixture
def elsewhere_engine(tmp_path: Path) -> Iterator[Any]:
    """Make another database with a table of this name, but other columns."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    table = sa.Table(ORDERS.name, sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(sa.insert(table).values(id=1))
    yield engine, table
    engine.dispose()


def test_a_table_of_this_name_in_another_database_is_not_the_class(
    session: Session, elsewhere_engine: Any
) -> None:
    there, table = elsewhere_engine
    statement = sa.select(table.c.id).with_for_update()
    with Session(there) as alone:
        assert alone.execute(statement).all()
        assert (Order, (1,)) not in alone.held_locks
    with Session(binds={Order: session.get_bind(), table: there}) as both:
        assert both.execute(statement).all()
        assert (Order, (1,)) not in both.held_locks


def _constant(orders: Any) -> Any:
    return sa.select(sa.literal(1)).select_from(orders).where(orders.c.id == 1).with_for_update()


def _locked(orders: Any) -> Any:
    return sa.select(orders).where(orders.c.id == 1).with_for_update()


WITHOUT_KEY: dict[str, Callable[[Any], Any]] = {
    "a constant": _constant,
    "EXISTS": lambda orders: sa.select(_locked(orders).exists()),
    "a subquery": lambda orders: sa.select(_locked(orders).subquery()),
}


@pytest.mark.parametrize("make", WITHOUT_KEY.values(), ids=WITHOUT_KEY)
def test_without_the_key_the_objects_are_read_again(
    session: Session, other: Session, orders: Any, make: Callable[[Any], Any]
) -> None:
    order = session.get_one(Order, 1)
    assert seen(order) == (30, [10, 20])
    add_ten(other)
    other.commit()
    session.execute(make(orders)).all()
    assert not session.held_locks
    assert order.total == 40
