"""with_lock() accepts an ORM select whose rows are table rows, and refuses everything else at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import (
    ForeignKey,
    Select,
    delete,
    exists,
    func,
    insert,
    lambda_stmt,
    literal,
    select,
    text,
    union,
    update,
)
from sqlalchemy.dialects import mssql
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    lazyload,
    mapped_column,
    relationship,
    with_polymorphic,
)

from sa_doclock import LockingSession, LockMisuse, LockNotSupported, LockOptions, with_lock
from sa_doclock.core.statements.with_lock import LOCK_OPTION, locked_entity_of
from sa_doclock.sqlalchemy_internals import ForUpdate, for_update_of, hint_of
from tests.support.models import Customer, Invoice, Lease, Line, Order
from tests.support.rows import rows
from tests.unit.mappings import Circle, Joined, Selected, Shape

LOCKS = [
    LockOptions.NoLock,
    LockOptions.SharedRead,
    LockOptions.ForUpdate,
    LockOptions.SnapshotRead,
]
each_lock = rows("lock", [LockOptions.None_, *LOCKS])

NO_STATEMENTS: dict[str, Any] = {
    "str": "SELECT 1",
    "int": 1,
    "None": None,
    "class": Order,
    "instance": Order(),
    "table": Order.__table__,
    "column": Order.id,
    "function": len,
    "list": [select(Order)],
    "exists": exists().where(Order.id == 1),
}
NO_ORM_SELECTS: dict[str, Callable[[], Any]] = {
    "text": lambda: text("SELECT 1"),
    "text with columns": lambda: text("SELECT 1").columns(Order.id),
    "lambda_stmt": lambda: lambda_stmt(lambda: select(Order)),
    "union": lambda: union(select(Order), select(Order)),
    "from_statement": lambda: select(Order).from_statement(text("SELECT 1")),
    "select of a table": lambda: select(Order.__table__),
    "select of columns of a table": lambda: select(Order.__table__.c.id),
    "select of a function": lambda: select(func.count()),
    "select of a literal": lambda: select(literal(1)),
    "select of a subquery": lambda: select(select(Order).subquery()),
    "update": lambda: update(Order),
    "delete": lambda: delete(Order),
    "insert": lambda: insert(Order),
    "Query": lambda: Session().query(Order),
    "function": func.now,
}


@each_lock
@rows("thing", NO_STATEMENTS.values(), ids=NO_STATEMENTS)
def test_what_is_no_statement_is_a_type_error(thing: Any, lock: LockOptions) -> None:
    with pytest.raises(TypeError, match="statement must be an ORM select, not"):
        with_lock(thing, lock)


@each_lock
@rows("make", NO_ORM_SELECTS.values(), ids=NO_ORM_SELECTS)
def test_what_is_no_orm_select_is_not_supported(make: Callable[[], Any], lock: LockOptions) -> None:
    with pytest.raises(LockNotSupported, match="lock an ORM select"):
        with_lock(make(), lock)


DERIVED: dict[str, Callable[[], Select[Any]]] = {
    "alias of joined inheritance": lambda: select(aliased(Lease)),
    "alias of a subquery": lambda: select(aliased(Order, select(Order).subquery())),
    "ConcreteBase": lambda: select(Shape),
    "its subclass": lambda: select(Circle),
    "mapped to a join": lambda: select(Joined),
    "mapped to a subquery": lambda: select(Selected),
}


@rows("lock", LOCKS)
@rows("make", DERIVED.values(), ids=DERIVED)
def test_rows_of_derived_tables_are_not_supported(
    make: Callable[[], Select[Any]], lock: LockOptions
) -> None:
    with pytest.raises(LockNotSupported, match="cannot be locked"):
        with_lock(make(), lock)


def test_of_several_entities_one_must_be_named() -> None:
    several = select(Order, Customer).join(Customer, literal(1) == 1)
    with pytest.raises(ValueError, match="entity"):
        with_lock(several, LockOptions.ForUpdate)
    locked = with_lock(several, LockOptions.ForUpdate, Customer)
    assert str(locked).endswith("FOR UPDATE")


def test_the_entity_must_be_one_of_the_statement() -> None:
    with pytest.raises(ValueError, match="Customer"):
        with_lock(select(Order), LockOptions.ForUpdate, Customer)
    with pytest.raises(ValueError, match="Order"):
        with_lock(select(aliased(Order)), LockOptions.ForUpdate, Order)


@pytest.mark.parametrize("entity", ["Order", 1, Order(), object])
def test_the_entity_must_be_a_mapped_class(entity: Any) -> None:
    with pytest.raises(TypeError, match="mapped class"):
        with_lock(select(Order), LockOptions.ForUpdate, entity)


def test_several_columns_of_one_entity_are_no_question() -> None:
    with_lock(select(Order.id, Order.total, Order), LockOptions.ForUpdate)


def test_without_a_lock_the_statement_comes_back() -> None:
    statement = select(Order)
    assert with_lock(statement, LockOptions.None_) is statement


@pytest.mark.parametrize("lock", LOCKS)
def test_the_statement_given_is_left_alone(lock: LockOptions) -> None:
    statement = select(Invoice)
    before = str(statement)
    locked = with_lock(statement, lock)
    assert locked is not statement
    assert str(statement) == before
    assert LOCK_OPTION not in statement.get_execution_options()


def test_it_can_be_narrowed_afterwards() -> None:
    locked = with_lock(select(Order), LockOptions.ForUpdate)
    narrowed = locked.join(Order.lines).where(Line.value > 5).order_by(Order.id).limit(1)
    assert str(narrowed).endswith("FOR UPDATE")
    assert (
        narrowed.get_execution_options()[LOCK_OPTION] == locked.get_execution_options()[LOCK_OPTION]
    )


def test_a_second_lock_is_refused() -> None:
    once = with_lock(select(Order), LockOptions.SharedRead)
    with pytest.raises(LockMisuse, match=r"with_for_update\(\)"):
        with_lock(once, LockOptions.ForUpdate)


def test_it_reads_afresh_and_does_not_flush_in_a_plain_session() -> None:
    options = with_lock(select(Order), LockOptions.ForUpdate).get_execution_options()
    assert options["populate_existing"] is True
    assert options["autoflush"] is False


@rows("options, ours", [((), 1), ((lazyload(Invoice.customer),), 0), ((lazyload("*"),), 0)])
def test_a_relationship_with_an_option_of_the_program_has_none_of_ours(
    options: tuple[Any, ...], ours: int
) -> None:
    locked = locked_entity_of(with_lock(select(Invoice).options(*options), LockOptions.ForUpdate))
    assert locked is not None
    assert len(locked.eager) == ours


class Dock(DeclarativeBase):
    pass


class Ship(Dock):
    __tablename__ = "ship"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "ship"}  # noqa: RUF012


class Tug(Ship):
    towed_id: Mapped[int | None] = mapped_column(ForeignKey("ship.id"))
    towed: Mapped[Ship | None] = relationship(lazy="joined", remote_side=Ship.id)
    __mapper_args__ = {"polymorphic_identity": "tug"}  # noqa: RUF012


def test_what_a_subclass_loads_along_is_loaded_by_a_second_statement() -> None:
    for entity in (Tug, with_polymorphic(Ship, [Tug]), with_polymorphic(Ship, [Tug], flat=True)):
        locked = locked_entity_of(with_lock(select(entity), LockOptions.ForUpdate))
        assert locked is not None
        assert len(locked.eager) == 1


# --------------------------------------------------------------------------------------------------
# Changing a select after it got its lock must not silently remove the lock.

ORDERS = Order.__table__
Change = Callable[[Select[Any]], Select[Any]]

REPLACED: Mapping[str, Change] = {
    "with_for_update": lambda locked: locked.with_for_update(),  # of all tables
    "read": lambda locked: locked.with_for_update(read=True, of=ORDERS),
    "nowait": lambda locked: locked.with_for_update(nowait=True, of=ORDERS),
    "skip_locked": lambda locked: locked.with_for_update(skip_locked=True, of=ORDERS),
    "key_share": lambda locked: locked.with_for_update(key_share=True, of=ORDERS),
    "of a column": lambda locked: locked.with_for_update(of=Order.id),
    "hint": lambda locked: locked.with_hint(Order, "WITH (NOLOCK)", "mssql"),
    "hint of every database": lambda locked: locked.with_hint(Order, "WITH (NOLOCK)"),
}
HINTED = select(Order).with_hint(Order, "/* mine */", "mssql").with_hint(Order, "/* any */")
LEFT: Mapping[str, Change] = {
    "two hints before the lock": lambda _: with_lock(HINTED, LockOptions.ForUpdate),
    "the same": lambda locked: locked.with_for_update(of=ORDERS),
    "hint of another table": lambda locked: locked.with_hint(Customer, "WITH (NOLOCK)", "mssql"),
    "hint of another database": lambda locked: locked.with_hint(Order, "FORCE INDEX", "mysql"),
    "hint before the lock": lambda _: with_lock(
        select(Order).with_hint(Order, "WITH (NOLOCK)", "mssql"), LockOptions.ForUpdate
    ),
}


@pytest.mark.parametrize("change", REPLACED.values(), ids=REPLACED)
def test_a_lock_that_was_replaced_is_refused(
    session: LockingSession, sent: list[str], change: Change
) -> None:
    with pytest.raises(LockMisuse, match="has replaced the lock"):
        session.execute(change(with_lock(select(Order), LockOptions.ForUpdate)))
    assert sent == []


def test_the_lock_is_the_hint_in_force() -> None:
    """Of the hints already on the statement, one is for the same database and one for all."""
    locked = with_lock(HINTED, LockOptions.ForUpdate)
    text = str(locked.compile(dialect=mssql.dialect()))  # type: ignore[no-untyped-call]
    assert "WITH (UPDLOCK, ROWLOCK)" in text
    assert hint_of(locked, ORDERS, "mssql") == "WITH (UPDLOCK, ROWLOCK)"


@pytest.mark.parametrize("change", LEFT.values(), ids=LEFT)
def test_a_lock_that_is_there_runs(session: LockingSession, change: Change) -> None:
    assert session.scalars(change(with_lock(select(Order), LockOptions.ForUpdate))).all()


def test_a_for_update_is_refused_where_a_snapshot_was_asked_for(session: LockingSession) -> None:
    locked = with_lock(select(Order), LockOptions.SnapshotRead)
    with pytest.raises(LockMisuse):
        session.execute(locked.with_for_update())


def test_what_is_read_of_with_for_update_and_with_hint() -> None:
    statement = select(Order)
    assert for_update_of(statement) is None
    assert hint_of(statement, ORDERS, "mssql") is None
    statement = statement.with_for_update(of=ORDERS, read=True, nowait=True)
    assert for_update_of(statement) == ForUpdate((id(ORDERS),), True, True, False)
    statement = statement.with_hint(Order, "A", "mssql").with_hint(Customer, "B", "mssql")
    assert hint_of(statement, ORDERS, "mssql") == "A"
    assert hint_of(statement, ORDERS, "mysql") is None
    assert hint_of(statement.with_hint(ORDERS, "C"), ORDERS, "mssql") == "C"


@pytest.mark.parametrize("kind", [LockingSession, Session])
def test_columns_alone_of_a_class_that_is_mapped_with_a_join_can_be_locked(
    session: LockingSession, kind: type[Session]
) -> None:
    locked = with_lock(select(Invoice.id), LockOptions.ForUpdate)
    with kind(session.get_bind()) as another:
        assert another.execute(locked).all() == [(1,), (2,)]


# --------------------------------------------------------------------------------------------------
# A locking select inside another kind of statement: the session must not overlook it.

Locked = Select[Any]

WRAPPED: dict[str, Callable[[LockingSession, Locked], Any]] = {
    "from_statement": lambda session, locked: session.execute(select(Order).from_statement(locked)),
    "scalars of from_statement": lambda session, locked: session.scalars(
        select(Order).from_statement(locked)
    ),
    "Query.from_statement": lambda session, locked: (
        session.query(Order).from_statement(locked).all()
    ),
    "union": lambda session, locked: session.execute(locked.union_all(select(Order))),
    "union, limited": lambda session, locked: session.execute(
        locked.limit(1).union_all(select(Order))
    ),
    "union of a union": lambda session, locked: session.execute(
        select(Order).union_all(locked.union_all(select(Order)))
    ),
    "from_statement of a union": lambda session, locked: session.execute(
        select(Order).from_statement(locked.limit(1).union_all(select(Order)))
    ),
    "second of a union": lambda session, locked: session.execute(select(Order).union_all(locked)),
    "distinct": lambda session, locked: session.execute(locked.distinct()),
    "group by": lambda session, locked: session.execute(locked.group_by(Order.id)),
}


@pytest.mark.parametrize("lock", [LockOptions.SharedRead, LockOptions.ForUpdate])
@rows("execute", WRAPPED.values(), ids=WRAPPED)
def test_it_is_not_supported(
    session: LockingSession,
    sent: list[str],
    execute: Callable[[LockingSession, Locked], Any],
    lock: LockOptions,
) -> None:
    with pytest.raises(LockNotSupported):
        execute(session, session.entity_set(Order, lock))
    assert sent == []
