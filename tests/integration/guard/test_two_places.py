"""The same class and key in another schema or database name another row, with another lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import registry

from sa_doclock import LockingSession, LockMisuse, LockOptions, UnlockedWrite
from tests.integration.guard.models import Base, Line, Order, order_tag

pytestmark = [
    pytest.mark.quick,
    pytest.mark.databases("postgresql", "mysql", "mariadb"),
    pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning"),
]

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Step = Callable[[Session, str], object]
ORDERS: Any = Order.__table__
LINKS: Any = order_tag
CURRENT = {"postgresql": "SELECT current_schema()"}


@pytest.fixture
def tenant(engine: sa.Engine) -> Iterator[str]:
    """Make a second schema with the same rows, and return its name."""
    with engine.begin() as connection:
        now = connection.scalar(sa.text(CURRENT.get(engine.name, "SELECT DATABASE()")))
        name = f"{now}_b"
        connection.execute(sa.schema.CreateSchema(name))
    there = engine.execution_options(schema_translate_map={None: name})
    Base.metadata.create_all(there)
    with there.begin() as connection:
        connection.execute(sa.insert(Order), [{"id": 1, "total": 0}, {"id": 2, "total": 0}])
        connection.execute(sa.insert(Line), [{"id": 1, "order_no": 1, "value": 0}])
    yield name
    Base.metadata.drop_all(there)
    with engine.begin() as connection:
        connection.execute(sa.schema.DropSchema(name))


@pytest.fixture
def session(
    request: pytest.FixtureRequest, make_session: Callable[..., Session]
) -> Iterator[Session]:
    """Open a session, and close it before the second schema is dropped."""
    request.getfixturevalue("tenant")
    made = make_session()
    yield made
    made.close()


def translated(statement: Any, tenant: str) -> Any:
    return statement.execution_options(schema_translate_map={None: tenant})


def go_to(session: Session, schema: str) -> None:
    postgresql = session.connection().dialect.name == "postgresql"
    session.execute(sa.text(f"SET search_path TO {schema}" if postgresql else f"USE {schema}"))


def map_of_connection(session: Session, tenant: str) -> None:
    session.connection().execution_options(schema_translate_map={None: tenant})
    session.get_entity(Order, 1, ForUpdate)


def other_engine(session: Session, tenant: str) -> None:
    session.bind = session.get_bind().engine.execution_options(schema_translate_map={None: tenant})
    session.get_entity(Order, 1, ForUpdate)


def by_foreign_sql(session: Session, tenant: str) -> None:
    go_to(session, tenant)
    session.get_entity(Order, 1, ForUpdate)


LOCKS: dict[str, Step] = {
    "a set": lambda s, b: s.scalars(translated(s.entity_set(Order, ForUpdate), b)).all(),
    "adopted": lambda s, b: s.scalars(
        translated(sa.select(Order).where(Order.id == 1).with_for_update(), b)
    ).all(),
    "adopted, of a key": lambda s, b: s.execute(
        sa.select(Order.id).where(Order.id == 1).with_for_update(),
        execution_options={"schema_translate_map": {None: b}},
    ).all(),
    "the connection's map": map_of_connection,
    "another engine": other_engine,
    "foreign SQL": by_foreign_sql,
}


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_the_row_of_another_tenant_is_not_taken_for_held(
    session: Session, tenant: str, lock: Step
) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockMisuse):
        lock(session, tenant)
    session.rollback()


WRITES: dict[str, Step] = {
    "UPDATE of the header": lambda s, b: s.execute(
        translated(sa.update(Order).where(Order.id == 1).values(total=1), b)
    ),
    "UPDATE of a part": lambda s, b: s.execute(
        sa.update(Line).where(Line.order_id == 1).values(value=1),
        execution_options={"schema_translate_map": {None: b}},
    ),
    "DELETE": lambda s, b: s.execute(translated(sa.delete(Line).where(Line.order_id == 1), b)),
    "INSERT of a part": lambda s, b: s.execute(
        translated(sa.insert(Line).values(id=91, order_id=1, value=1), b)
    ),
    "a link": lambda s, b: s.execute(translated(sa.insert(LINKS).values(order_id=1, tag_id=2), b)),
    "Core": lambda s, b: s.execute(
        translated(sa.update(ORDERS).where(ORDERS.c.id == 1).values(total=1), b)
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_the_row_of_another_tenant_is_not_written(
    session: Session, tenant: str, write: Step
) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises((UnlockedWrite, LockMisuse)):
        write(session, tenant)
    session.rollback()


def flush_by_connection(session: Session, tenant: str) -> None:
    order = session.get_one(Order, 1)
    session.connection().execution_options(schema_translate_map={None: tenant})
    order.total = 1
    session.flush()


def flush_by_foreign_sql(session: Session, tenant: str) -> None:
    order = session.get_one(Order, 1)
    go_to(session, tenant)
    order.total = 1
    session.flush()


def flush_by_bind(session: Session, tenant: str) -> None:
    order = session.get_one(Order, 1)
    session.bind = session.get_bind().engine.execution_options(schema_translate_map={None: tenant})
    order.total = 1
    session.flush()


@pytest.mark.parametrize("flush", [flush_by_connection, flush_by_foreign_sql, flush_by_bind])
def test_a_flush_does_not_go_to_another_tenant(session: Session, tenant: str, flush: Step) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises((UnlockedWrite, LockMisuse)):
        flush(session, tenant)
    session.rollback()


def test_a_new_document_is_new_in_its_own_schema(session: Session, tenant: str) -> None:
    session.add(Order(id=9, total=0))
    session.flush()
    with pytest.raises((UnlockedWrite, LockMisuse)):
        session.execute(translated(sa.update(Order).where(Order.id == 9).values(total=1), tenant))
    session.rollback()


def test_one_tenant_after_another(session: Session, tenant: str, engine: sa.Engine) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 7
    session.save_changes()
    session.expunge_all()
    for order in session.scalars(translated(session.entity_set(Order, ForUpdate), tenant)):
        assert order.total != 7
    session.commit()
    here = engine.execution_options(schema_translate_map={None: tenant})
    with LockingSession(here) as there:
        there.get_one_entity(Order, 1, ForUpdate).total = 8
        there.save_changes()


def test_a_map_is_the_one_of_each_statement(session: Session, tenant: str) -> None:
    """SQLAlchemy writes into the map of a statement that it renders."""
    one, other = ({None: tenant} for _ in range(2))
    locking = sa.select(Order).with_for_update()
    for key, schemas in ((1, one), (2, other)):
        of_key = locking.where(Order.id == key)
        session.scalars(of_key, execution_options={"schema_translate_map": schemas}).one()
    session.execute(translated(sa.update(Order).where(Order.id == 1).values(total=1), tenant))
    one[None] = session.connection().dialect.default_schema_name or ""
    with pytest.raises((UnlockedWrite, LockMisuse)):
        session.execute(
            sa.update(Order).where(Order.id == 1).values(total=2),
            execution_options={"schema_translate_map": one},
        )
    session.rollback()


LIGHT_ORDERS = sa.table(ORDERS.name, *(sa.column(one.name) for one in ORDERS.columns))
LIGHT_LINES = sa.table("gd_line", *map(sa.column, ("id", "order_no", "value")))


def test_a_lock_of_a_table_construct_is_in_the_schema_that_no_map_has_moved(
    session: Session, tenant: str
) -> None:
    """SQLAlchemy applies a ``schema_translate_map`` to a Table, and not to a ``table()``."""
    session.connection().execution_options(schema_translate_map={None: tenant})
    session.execute(sa.select(LIGHT_ORDERS).where(LIGHT_ORDERS.c.id == 1).with_for_update()).one()
    assert not session.held_locks
    with pytest.raises(UnlockedWrite):
        session.execute(sa.update(Order).where(Order.id == 1).values(total=1))


MOVES: dict[str, Step] = {"the connection's map": map_of_connection, "another engine": other_engine}
LIGHT_WRITES: dict[str, Step] = {
    "UPDATE of the header": lambda s, _: s.execute(
        sa.update(LIGHT_ORDERS).where(LIGHT_ORDERS.c.id == 1).values(total=1)
    ),
    "UPDATE of a part": lambda s, _: s.execute(
        sa.update(LIGHT_LINES).where(LIGHT_LINES.c.order_no == 1).values(value=1)
    ),
    "DELETE": lambda s, _: s.execute(sa.delete(LIGHT_LINES).where(LIGHT_LINES.c.id == 99)),
    "INSERT of a part": lambda s, _: s.execute(
        sa.insert(LIGHT_LINES).values(id=91, order_no=1, value=1)
    ),
}


@pytest.mark.parametrize("locks", [True, False], ids=["locked there", "no lock"])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("write", LIGHT_WRITES.values(), ids=LIGHT_WRITES)
def test_a_table_construct_past_the_map_is_not_written(
    session: Session, tenant: str, move: Step, write: Step, locks: bool
) -> None:
    move(session, tenant)
    if not locks:
        session.commit()
        session.connection().execution_options(schema_translate_map={None: tenant})
    with pytest.raises(UnlockedWrite, match=r"table\(\), to which schema_translate_map does not"):
        write(session, tenant)
    with session.unguarded():
        write(session, tenant)


def test_the_schema_may_be_set_before_the_first_lock_and_set_back(
    session: Session, tenant: str
) -> None:
    now = session.scalar(sa.text(CURRENT.get(session.get_bind().dialect.name, "SELECT DATABASE()")))
    go_to(session, tenant)
    session.get_one_entity(Order, 1, ForUpdate).total = 8
    session.flush()
    go_to(session, now)
    go_to(session, tenant)
    session.get_one_entity(Order, 2, ForUpdate).total = 8
    session.commit()
    go_to(session, now)
    session.commit()


SETS: dict[str, Step] = {
    "the second schema of the path": lambda s, path: s.execute(
        sa.text(f"SET search_path TO pg_catalog, {path}")
    ),
    "a function": lambda s, path: s.execute(
        sa.select(sa.func.set_config("search_path", f"pg_catalog, {path}", sa.false()))
    ),
    "a function, on the connection": lambda s, path: s.connection().execute(
        sa.select(sa.literal_column(f"set_config('search_path', 'pg_catalog, {path}', true)"))
    ),
}


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("set_path", SETS.values(), ids=SETS)
def test_the_whole_search_path_is_compared(session: Session, tenant: str, set_path: Step) -> None:
    now = session.scalar(sa.text(CURRENT["postgresql"]))
    session.execute(sa.text(f"SET search_path TO pg_catalog, {now}"))
    session.get_one_entity(Order, 1, ForUpdate)
    set_path(session, tenant)
    with pytest.raises(LockMisuse, match="current schema"):
        session.get_entity(Order, 1, ForUpdate)
    set_path(session, str(now))
    session.get_one_entity(Order, 1, ForUpdate).total = 1
    session.flush()
    session.rollback()


@pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb")
def test_two_databases(engine: sa.Engine, tmp_path: Any) -> None:
    """The second database is SQLite: only its own answer decides, and it is never queried."""
    elsewhere = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    Base.metadata.create_all(elsewhere)
    with elsewhere.begin() as connection:
        connection.execute(sa.insert(Order), [{"id": 1, "total": 0}])
    with LockingSession(engine) as session:
        order = session.get_one_entity(Order, 1, ForUpdate)
        with pytest.raises((UnlockedWrite, LockMisuse)):
            session.execute(
                sa.update(Order).where(Order.id == 1).values(total=1),
                bind_arguments={"bind": elsewhere},
            )
        session.rollback()
        order = session.get_one_entity(Order, 1, ForUpdate)
        session.bind = elsewhere
        with pytest.raises(LockMisuse, match=r"other\.db"):
            session.get_entity(Order, 1, ForUpdate)
        order.total = 1
        with pytest.raises((UnlockedWrite, LockMisuse)):
            session.flush()
        session.rollback()
    elsewhere.dispose()


@pytest.mark.parametrize("table", [LIGHT_ORDERS, ORDERS.to_metadata(sa.MetaData())], ids=type)
def test_a_lock_in_another_database_permits_no_write_by_a_second_object_here(
    engine: sa.Engine, tmp_path: Any, table: Any
) -> None:
    elsewhere = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    Base.metadata.create_all(elsewhere)
    with elsewhere.begin() as connection:
        connection.execute(sa.insert(Order), [{"id": 1, "total": 0}])
    with LockingSession(engine) as session:
        of_key = sa.select(Order.id).where(Order.id == 1).with_for_update()
        session.execute(of_key, bind_arguments={"bind": elsewhere}).one()
        assert session.held_locks
        with pytest.raises((UnlockedWrite, LockMisuse)):
            session.execute(sa.update(table).where(table.c.id == 1).values(total=7))
        session.rollback()
    elsewhere.dispose()


def test_a_second_class_has_the_same_rows(engine: sa.Engine, tmp_path: Any) -> None:
    elsewhere = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    Base.metadata.create_all(elsewhere)
    with elsewhere.begin() as connection:
        connection.execute(sa.insert(Order), [{"id": 1, "total": 0}])
    again = registry()
    second = type("OrderAgain", (), {})
    again.map_imperatively(second, ORDERS)
    with LockingSession(engine) as session:
        session.scalars(sa.select(Order.id).where(Order.id == 1).with_for_update()).one()
        session.bind = elsewhere
        with pytest.raises(LockMisuse, match=r"other\.db"):
            session.get(second, 1, with_for_update=True)
        session.rollback()
    again.dispose()
    elsewhere.dispose()
