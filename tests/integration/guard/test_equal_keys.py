"""Headers whose key equals the lines' foreign key in the database, but not in Python.

Each kind has two headers with one line, mapped twice: declared and not declared.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import CHAR, Column, Date, Integer, MetaData, Numeric, String, Table, Uuid
from sqlalchemy.orm import foreign, registry, relationship
from sqlalchemy.types import TypeDecorator, TypeEngine

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, UnsavedChanges, document
from tests.integration.guard.steps import writes_sent
from tests.support.databases import Database

pytestmark = pytest.mark.each_value

METADATA = MetaData()
_OWNED = "all, delete-orphan"


class Code:
    """A value object; no string equals it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Code) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __lt__(self, other: Code) -> bool:
        return self.text < other.text


class CodeType(TypeDecorator[Code]):
    """A Code, stored as its string."""

    impl = String(40)
    cache_ok = True

    def process_bind_param(self, value: Code | None, dialect: object) -> str | None:
        return None if value is None else value.text

    def process_result_value(self, value: str | None, dialect: object) -> Code | None:
        return None if value is None else Code(value)


class Kind:
    """Two headers by their keys, and the same keys as their lines have them."""

    def __init__(
        self,
        name: str,
        types: Sequence[TypeEngine[Any]],
        keys: Sequence[Any],
        references: Sequence[Any],
        databases: Collection[str],
    ) -> None:
        self.name, self.keys, self.references, self.databases = name, keys, references, databases
        columns = (
            Column("id", types[0], primary_key=True, autoincrement=False),
            Column("total", Integer, default=0),
        )
        self.orders = Table(f"ek_{name}_order", METADATA, *columns)
        self.lines = Table(
            f"ek_{name}_line",
            METADATA,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("order_id", types[1]),
            Column("value", Integer, default=0),
        )
        self.Order, self.Line = self._mapped()
        document(self.Order)
        self.PlainOrder, self.PlainLine = self._mapped()

    def __repr__(self) -> str:
        return self.name

    def rows(self) -> Mapping[Table, list[dict[str, Any]]]:
        lines = enumerate(self.references, 1)
        return {
            self.orders: [{"id": key, "total": 10} for key in self.keys],
            self.lines: [{"id": one, "order_id": key, "value": 10} for one, key in lines],
        }

    def _mapped(self) -> tuple[Any, Any]:
        mapping = registry()
        order = type("Order", (), {"__init__": _set_attributes})
        line = type("Line", (), {"__init__": _set_attributes})
        condition = foreign(self.lines.c.order_id) == self.orders.c.id
        lines: Any = relationship(
            line,
            primaryjoin=condition,
            cascade=_OWNED,
            order_by=self.lines.c.id,
            back_populates="order",
            overlaps="lines,order",
        )
        mapping.map_imperatively(order, self.orders, properties={"lines": lines})
        back: Any = relationship(
            order, primaryjoin=condition, back_populates="lines", overlaps="lines,order"
        )
        mapping.map_imperatively(line, self.lines, properties={"order": back})
        return order, line


def _set_attributes(self: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(self, name, value)


_UUIDS = uuid.UUID(int=0xABCDEF), uuid.UUID(int=0xFEDCBA)
_TEXT = String(40).with_variant(String(40, collation="NOCASE"), "sqlite")
_TRIMMED = (
    String(10)
    .with_variant(String(10, collation="utf8mb4_general_ci"), "mysql", "mariadb")
    .with_variant(String(10, collation="RTRIM"), "sqlite")
)
_ALL = "postgresql", "mysql", "mariadb", "sqlite"
_CONVERTING = "mysql", "mariadb", "sqlite"

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        # PostgreSQL has such collations with ICU, and citext; the tests' server has neither.
        Kind("case", (_TEXT, _TEXT), ("abc", "xyz"), ("ABC", "xYz"), _CONVERTING),
        Kind("blanks", (_TRIMMED, _TRIMMED), ("abc", "xyz"), ("abc  ", "xyz"), _CONVERTING),
        Kind(
            "padded",
            (CHAR(5), CHAR(8)),
            ("abc  ", "xyz  "),
            ("abc     ", "xyz     "),
            ("postgresql",),
        ),
        Kind("uuid", (Uuid(), Uuid(as_uuid=False)), _UUIDS, tuple(map(str, _UUIDS)), _ALL),
        Kind(
            "decimal",
            (Numeric(10, 2), Numeric(10, 2, asdecimal=False)),
            (Decimal("1.10"), Decimal("2.20")),
            (1.1, 2.2),
            _ALL,
        ),
        Kind(
            "decorator", (CodeType(), String(40)), (Code("abc"), Code("xyz")), ("abc", "xyz"), _ALL
        ),
        Kind("number", (Integer(), String(40)), (1, 2), ("1", "02"), ("mysql", "mariadb")),
        Kind(
            "date",
            (Date(), String(40)),
            (dt.date(2024, 1, 1), dt.date(2024, 1, 2)),
            ("2024-01-01", "2024-01-02"),
            _CONVERTING,
        ),
    )
}


# --------------------------------------------------------------------------------------------------
# Keys that differ in Python but are equal in the database: the database decides the owner.

ForUpdate = LockOptions.ForUpdate


@pytest.fixture(scope="session")
def made() -> Iterator[dict[str, Database]]:
    """The databases whose tables exist already."""
    databases: dict[str, Database] = {}
    yield databases
    for database in databases.values():
        database.close()


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def kind(request: pytest.FixtureRequest, database: Database, made: dict[str, Database]) -> Kind:
    """Each kind of keys that this database supports, with its rows."""
    kind: Kind = request.param
    if database.name not in kind.databases:
        pytest.skip(f"{database.name} has no such keys")
    if database.url not in made:
        own = database.kept()
        own.create(METADATA)
        if database.name != "sqlite":  # a file for each test
            made[database.url] = own
    with database.engine().begin() as connection:
        connection.execute(kind.lines.delete())
        connection.execute(kind.orders.delete())
        for table, rows in kind.rows().items():
            connection.execute(table.insert(), rows)
    return kind


@pytest.fixture
def session(database: Database, kind: Kind) -> Iterator[LockingSession]:
    """Open a session whose open transaction can lock a document."""
    own = {"isolation_level": "READ COMMITTED"} if database.name in ("mysql", "mariadb") else {}
    assert kind
    with LockingSession(database.engine(**own), expire_on_commit=False) as session:
        yield session


Action = Callable[[LockingSession, Kind], object]


def change(session: LockingSession, kind: Kind) -> object:
    (line := session.get_one(kind.Line, 1)).value = 11
    return line


def add(session: LockingSession, kind: Kind) -> object:
    session.add(line := kind.Line(id=9, order_id=kind.references[0], value=1))
    return line


def delete(session: LockingSession, kind: Kind) -> object:
    session.delete(line := session.get_one(kind.Line, 1))
    return line


def update_statement(session: LockingSession, kind: Kind) -> object:
    return session.execute(sa.update(kind.Line).where(kind.Line.id == 1).values(value=11))


def insert_statement(session: LockingSession, kind: Kind) -> object:
    return session.execute(sa.insert(kind.Line).values(id=9, order_id=kind.references[0], value=1))


def update_mappings(session: LockingSession, kind: Kind) -> object:
    session.bulk_update_mappings(kind.Line, [{"id": 1, "value": 11}])
    return kind


ACTIONS: dict[str, Action] = {
    one.__name__: one
    for one in (change, add, delete, update_statement, insert_statement, update_mappings)
}
each_action = pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)


@each_action
def test_a_line_of_the_held_document_is_written(
    session: LockingSession, kind: Kind, action: Action
) -> None:
    order = session.get_one_entity(kind.Order, kind.keys[0], ForUpdate)
    kept = action(session, kind)
    session.flush()
    if action is not delete:
        order.lines[0].value = 12
    session.commit()
    assert kept


@each_action
def test_a_line_of_another_document_is_refused(
    session: LockingSession, kind: Kind, action: Action
) -> None:
    order = session.get_one_entity(kind.Order, kind.keys[1], ForUpdate)

    def write() -> None:
        kept = action(session, kind)
        session.flush()
        assert kept

    with writes_sent(session) as sent, pytest.raises(UnlockedWrite) as caught:
        write()
    assert sent == []
    assert caught.value.entity is kind.Order
    assert order


def test_a_line_that_moves_needs_both(session: LockingSession, kind: Kind) -> None:
    orders = [session.get_one_entity(kind.Order, kind.keys[0], ForUpdate)]
    line = session.get_one(kind.Line, 1)
    line.order_id = kind.references[1]
    with pytest.raises(UnlockedWrite):
        session.flush()
    session.rollback()
    orders = session.get_entities(kind.Order, kind.keys, ForUpdate)
    line = session.get_one(kind.Line, 1)
    line.order_id = kind.references[1]
    session.commit()
    assert len(orders) == 2


def test_the_database_is_asked_once_for_a_flush(session: LockingSession, kind: Kind) -> None:
    orders = session.get_entities(kind.Order, kind.keys, ForUpdate)
    lines = session.scalars(sa.select(kind.Line)).all()
    for line in lines:
        line.value += 1
    sent: list[str] = []
    engine = session.get_bind()
    sa.event.listen(engine, "before_cursor_execute", lambda *a: sent.append(a[2]))
    session.flush()
    selects = [one for one in sent if one.startswith("SELECT")]
    assert len(selects) <= 1
    sent.clear()
    for line in lines:
        line.value += 1
    session.flush()
    assert [one for one in sent if one.startswith("SELECT")] == []
    assert orders


def test_a_new_header_with_its_line_needs_no_lock(session: LockingSession, kind: Kind) -> None:
    for table in (kind.lines, kind.orders):
        session.connection().execute(table.delete())
    session.commit()
    session.add(order := kind.Order(id=kind.keys[0], total=1))
    session.add(line := kind.Line(id=9, order_id=kind.references[0], value=1))
    session.commit()
    assert all((order, line))


def test_a_rollback_to_a_savepoint_takes_the_permission_back(
    session: LockingSession, kind: Kind
) -> None:
    session.begin()
    savepoint = session.begin_nested()
    order = session.get_one_entity(kind.Order, kind.keys[0], ForUpdate)
    line = session.get_one(kind.Line, 1)
    line.value = 11
    session.flush()
    savepoint.rollback()
    session.get_one(kind.Line, 1).value = 12
    with pytest.raises(UnlockedWrite):
        session.flush()
    assert all((order, line))


LOCKS: dict[str, Callable[[LockingSession, Any, Any], Any]] = {
    "get_entity": lambda s, entity, key: s.get_entity(entity, key, ForUpdate),
    "get_entities": lambda s, entity, key: s.get_entities(entity, [key], ForUpdate),
    "a set": lambda s, entity, key: s.scalars(
        s.entity_set(entity, ForUpdate).where(entity.id == key)
    ).all(),
}


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
@pytest.mark.parametrize("declared", [True, False])
def test_a_pending_change_of_a_line_is_refused(
    session: LockingSession, kind: Kind, lock: Callable[..., Any], *, declared: bool
) -> None:
    order, line = (kind.Order, kind.Line) if declared else (kind.PlainOrder, kind.PlainLine)
    changed = session.get_one(line, 1)
    session.commit()
    changed.value += 1
    with session.no_autoflush, pytest.raises(UnsavedChanges):
        lock(session, order, kind.keys[0])
    session.rollback()
    changed = session.get_one(line, 1)
    session.commit()
    changed.value += 1
    with session.no_autoflush:
        assert lock(session, order, kind.keys[1])


@pytest.mark.parametrize("declared", [True, False])
def test_documents_come_with_their_lines(
    session: LockingSession, kind: Kind, *, declared: bool
) -> None:
    order = kind.Order if declared else kind.PlainOrder
    found = session.get_documents(order, kind.keys, ForUpdate)
    assert [[line.id for line in one.lines] for one in found] == [[1], [2]]
    session.rollback()
    session.expunge_all()
    one = session.get_document(order, kind.keys[0], ForUpdate)
    assert one is not None
    assert [line.id for line in one.lines] == [1]


def test_what_was_read_before_the_lock_is_fresh(
    session: LockingSession, kind: Kind, database: Database
) -> None:
    order = session.get_one(kind.Order, kind.keys[0])
    assert order.lines[0].value == 10
    session.commit()
    with database.engine().begin() as connection:
        connection.execute(kind.lines.update().values(value=77))
    (again,) = session.get_documents(kind.Order, kind.keys[:1], ForUpdate)
    assert again is order
    assert order.lines[0].value == 77


def test_a_key_as_the_lines_have_it_is_the_same_document(
    session: LockingSession, kind: Kind
) -> None:
    if kind.name != "case":
        pytest.skip("its value is none for the key's column")
    reference = kind.references[0]
    assert len(session.get_entities(kind.Order, [reference, kind.keys[0]], ForUpdate)) == 1
    assert session.held_locks == {(kind.Order, (kind.keys[0],)): ForUpdate}
    assert len(session.get_entities(kind.Order, [reference, kind.keys[0]], ForUpdate)) == 1
    order = session.get_one_entity(kind.Order, reference, ForUpdate)
    order.total = 11
    assert session.get_one_entity(kind.Order, reference, ForUpdate) is order
    session.commit()
