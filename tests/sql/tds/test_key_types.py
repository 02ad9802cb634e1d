"""The server compares a key as a value of its column, whatever type the driver sends.

The plans come from the model: only a value of the column's own type can seek an index, as with a
collation whose name begins with SQL_.  The drivers are real.
"""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from sqlalchemy import (
    BINARY,
    CHAR,
    DateTime,
    Engine,
    Enum,
    Float,
    ForeignKey,
    LargeBinary,
    Numeric,
    String,
    TypeDecorator,
    Unicode,
    Uuid,
    select,
)
from sqlalchemy.dialects.mssql import DATETIME2
from sqlalchemy.exc import DBAPIError, ResourceClosedError, StatementError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.types import TypeEngine

from lab.tds.answers import Ended
from lab.tds.engines import ENGINES
from lab.tds.model import ROW, Table
from lab.tds.server import TDSServer, said
from sa_doclock import LockingSession, LockNotSupported, LockOptions, claim_each
from sa_doclock.dialects import strategy_for
from tests.sql.models import Order
from tests.sql.servers import take_first_lock

pytestmark = pytest.mark.each_value

FOR_UPDATE = LockOptions.ForUpdate


class Base(DeclarativeBase):
    pass


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Code(TypeDecorator[str]):
    """A type that the program defines."""

    impl = String(20)
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: Any) -> Any:
        return f"x{value}"

    def process_result_value(self, value: Any, _dialect: Any) -> Any:
        return None if value is None else str(value).removeprefix("x")


class Kind(NamedTuple):
    """A type of key, two values, the type of its column, and the type of the cast."""

    type_: TypeEngine[Any]
    values: tuple[Any, Any]
    column: str
    cast: str


def _datetime2() -> TypeEngine[Any]:
    found: TypeEngine[Any] = DATETIME2(6)  # type: ignore[no-untyped-call]
    return found


NIGHT = dt.datetime(2026, 11, 29, 1, 2, 3, 4_000)  # noqa: DTZ001  # DATETIME has no zone
KINDS: Mapping[str, Kind] = {
    "string": Kind(String(20), ("a", "b"), "varchar", "VARCHAR(8000)"),
    "umlaut": Kind(String(20), ("ä", "b"), "varchar", "VARCHAR(8000)"),
    "no length": Kind(String(), ("a", "b"), "varchar", "VARCHAR(8000)"),
    "unicode": Kind(Unicode(20), ("a", "ä"), "nvarchar", "NVARCHAR(4000)"),
    "enum": Kind(Enum(Colour), (Colour.RED, Colour.BLUE), "varchar", "VARCHAR(8000)"),
    "enum of text": Kind(Enum("a", "b"), ("a", "b"), "varchar", "VARCHAR(8000)"),
    "char": Kind(CHAR(10), ("a", "b"), "char", "CHAR(8000)"),
    "uuid as text": Kind(
        Uuid(native_uuid=False), (uuid.UUID(int=1), uuid.UUID(int=2)), "char", "CHAR(8000)"
    ),
    "decorator": Kind(Code(), ("a", "b"), "varchar", "VARCHAR(8000)"),
    "variant": Kind(
        String(20).with_variant(Unicode(20), "mssql"), ("a", "b"), "nvarchar", "NVARCHAR(4000)"
    ),
    "collation": Kind(
        String(20, collation="Latin1_General_BIN"), ("a", "b"), "varchar", "VARCHAR(8000)"
    ),
    "binary": Kind(BINARY(4), (b"a", b"b"), "binary", "BINARY(8000)"),
    "varbinary": Kind(LargeBinary(4), (b"a", b"b"), "varbinary", "VARBINARY(8000)"),
    "datetime": Kind(DateTime(), (NIGHT, NIGHT), "datetime", "DATETIME"),
    "datetime2": Kind(_datetime2(), (NIGHT, NIGHT), "datetime2", "DATETIME2(6)"),
    "decimal": Kind(Numeric(10, 2), (Decimal("1.5"), Decimal(2)), "numeric", "NUMERIC(10, 2)"),
    "float for a decimal": Kind(
        Numeric(10, 2, asdecimal=False), (1.5, 2.5), "numeric", "NUMERIC(10, 2)"
    ),
    "float": Kind(Float(), (1.5, 2.5), "float", "FLOAT"),
}


def _mapped(name: str, kind: Kind) -> Any:
    table = f"key_{name.replace(' ', '_')}"
    columns = {
        "__tablename__": table,
        "__annotations__": {},
        "code": mapped_column(kind.type_, primary_key=True),
        "total": mapped_column(Numeric, nullable=True),
    }
    return type(f"Key{name.title().replace(' ', '')}", (Base,), columns)


CLASSES = {name: _mapped(name, kind) for name, kind in KINDS.items()}


class Child(Base):
    """A composite key with one column of another type than the driver sends."""

    __tablename__ = "key_child"
    code: Mapped[Colour] = mapped_column(
        Enum(Colour), ForeignKey(CLASSES["enum"].code), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)


def _claim(session: LockingSession, entity: Any, *_: Any) -> None:
    engine: Any = session.get_bind()
    for claim in claim_each(sessionmaker(engine, class_=LockingSession), select(entity), limit=1):
        with claim:
            pass


#: The server's answer has a row of another type.
OF_ANOTHER_TYPE = (TypeError, ValueError, LookupError, AttributeError, StatementError)
WAYS: Mapping[str, Callable[[LockingSession, Any, Any], object]] = {
    "key": lambda s, entity, values: s.get_entity(entity, values[0], FOR_UPDATE),
    "keys": lambda s, entity, values: s.get_entities(entity, {*values}, FOR_UPDATE),
}


@pytest.fixture
def engine_key_types(any_driver: str, wire: TDSServer) -> Iterator[Engine]:
    """Provide an engine for each driver."""
    engine = ENGINES[any_driver](wire.port, pool_size=1, max_overflow=0)
    strategy_for(engine)
    yield engine
    engine.dispose()


def _columns(name: str) -> Table:
    return Table(frozenset({"code", "total"}), ("code",), types={"code": KINDS[name].column})


@pytest.mark.parametrize("name", KINDS)
def test_a_key_is_sought_as_a_value_of_its_column(
    engine_key_types: Engine, wire: TDSServer, name: str
) -> None:
    entity, kind = CLASSES[name], KINDS[name]
    wire.database.tables = {entity.__tablename__: _columns(name)}
    for way in ("key", "keys"):
        wire.sent.clear()
        with LockingSession(engine_key_types) as session, suppress(*OF_ANOTHER_TYPE):
            WAYS[way](session, entity, kind.values)
        (sent,) = said(wire, "UPDLOCK")
        assert f" AS {kind.cast})" in sent.text
        (found,) = {one for each in wire.sessions for one in each.all_locked}
        assert (found.path, found.by_scan) == (ROW, False)


def test_so_is_one_column_of_a_composite_key(engine_key_types: Engine, wire: TDSServer) -> None:
    wire.database.tables = {
        "key_child": Table(
            frozenset({"code", "number"}), ("code", "number"), types={"code": "varchar"}
        )
    }
    with LockingSession(engine_key_types) as session:
        keys = [(Colour.RED, 1), (Colour.BLUE, 2)]
        with pytest.raises(LookupError):
            session.get_entities(Child, keys, FOR_UPDATE)
    (sent,) = said(wire, "UPDLOCK")
    assert sent.text.count(" AS VARCHAR(8000))") == 2


@pytest.mark.parametrize("name", ["string", "decorator", "char"])
def test_so_it_is_in_a_claim_and_in_a_set_over_a_join(
    engine_key_types: Engine, wire: TDSServer, name: str
) -> None:
    entity, kind = CLASSES[name], KINDS[name]
    wire.database.tables = {entity.__tablename__: _columns(name)}
    with LockingSession(engine_key_types) as session:
        with suppress(*OF_ANOTHER_TYPE):
            _claim(session, entity)
        with suppress(*OF_ANOTHER_TYPE):
            other = select(CLASSES["float"].code).exists()
            session.scalars(session.entity_set(entity, FOR_UPDATE).where(other)).all()
    sent = said(wire, "FORCESEEK")
    assert sent
    for one in sent:
        assert f" AS {kind.cast})" in one.text


def test_an_integer_is_sent_as_it_is(engine_key_types: Engine, wire: TDSServer) -> None:
    class Plain(DeclarativeBase):
        pass

    class Counter(Plain):
        __tablename__ = "key_integer"
        id: Mapped[int] = mapped_column(primary_key=True)

    with LockingSession(engine_key_types) as session:
        session.get_entity(Counter, 1, FOR_UPDATE)
    (sent,) = said(wire, "UPDLOCK")
    assert "CAST" not in sent.text


def test_without_the_cast_the_model_has_no_plan(engine_key_types: Engine, wire: TDSServer) -> None:
    """Plain SQLAlchemy sends an Enum as nvarchar on each driver except mssql-python."""
    entity = CLASSES["enum"]
    wire.database.tables = {entity.__tablename__: _columns("enum")}
    by_hand = (
        select(entity.__table__.c.total)
        .where(entity.__table__.c.code == Colour.RED)
        .with_hint(entity.__table__, "WITH (UPDLOCK, FORCESEEK)")
    )
    if engine_key_types.driver == "mssqlpython":
        return
    with engine_key_types.connect() as connection, pytest.raises(DBAPIError, match="8622"):
        connection.execute(by_hand)


def test_where_no_index_is_found_the_error_names_the_causes(
    engine_key_types: Engine, wire: TDSServer
) -> None:
    wire.database.failures.append(("FROM key_string", 8622))
    with (
        LockingSession(engine_key_types) as session,
        pytest.raises(LockNotSupported, match=r"no index begins with .* the mapped type is not"),
    ):
        session.get_entity(CLASSES["string"], "a", FOR_UPDATE)


# --------------------------------------------------------------------------------------------------
# The driver finds the rows of a SELECT that follows other statements in one batch.
#
# pyodbc looks at the first result only, and a statement can be one. That the server answers a SET
# without a count is from "DONE", [MS-TDS] 2.2.7.6, and is not proved here.


@pytest.fixture
def engine(engine: Engine, wire: TDSServer) -> Engine:
    """Ask the one-time questions in advance."""
    take_first_lock(engine)
    wire.sent.clear()
    return engine


def test_a_select_behind_a_set(session: LockingSession, wire: TDSServer) -> None:
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    assert (order.id, order.total) == (1, 1)
    (sent,) = said(wire, "LOCK_TIMEOUT")
    assert str(sent).startswith("sp_prepexec: SET LOCK_TIMEOUT 300; SELECT ")
    assert sent.text.endswith("WITH (UPDLOCK, ROWLOCK, FORCESEEK) WHERE shop_order.id = @P1")


def test_a_select_without_parameters_behind_a_set(session: LockingSession, wire: TDSServer) -> None:
    orders = session.entity_set(Order, LockOptions.ForUpdate, lock_timeout=0.3)
    (order,) = session.scalars(orders).all()
    assert order.id == 1
    (sent,) = said(wire, "LOCK_TIMEOUT")
    assert str(sent).startswith("batch: EXEC sp_executesql N'SET LOCK_TIMEOUT 300; SELECT ")


@pytest.mark.parametrize("before", [(), (Ended(), Ended())], ids=["nothing", "statements"])
def test_the_value_of_a_named_lock(
    session: LockingSession, wire: TDSServer, before: tuple[Ended, ...]
) -> None:
    wire.database.chatter = before
    session.lock_key("user:42")
    (sent,) = said(wire, "sp_getapplock")
    assert sent.how == "sp_prepexec"
    assert sent.in_transaction


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["freetds"], indirect=True)
def test_freetds_finds_it_behind_a_count(session: LockingSession, wire: TDSServer) -> None:
    wire.database.chatter = [Ended(1)]  # as after an UPDATE
    session.lock_key("user:42")


@pytest.mark.parametrize("driver", ["odbc18"], indirect=True)
def test_microsofts_driver_does_not(session: LockingSession, wire: TDSServer) -> None:
    wire.database.chatter = [Ended(1)]
    with pytest.raises(ResourceClosedError, match="does not return rows"):
        session.lock_key("user:42")
