"""The statements that SQLAlchemy sends over each driver, and the number in what the driver raises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, String, Unicode, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from sa_doclock.dialects import strategy_for
from tests.sql.models import Customer
from tests.sql.tds.engines import ENGINES
from tests.sql.tds.server import TDSServer, said
from tests.sql.test_mssql_errors import known_numbers, meanings

TYPES = ("nvarchar", "varchar")


class Base(DeclarativeBase):
    pass


class Narrow(Base):
    __tablename__ = "narrow"
    code: Mapped[str] = mapped_column(String(20), primary_key=True)


class Wide(Base):
    __tablename__ = "wide"
    code: Mapped[str] = mapped_column(Unicode(20), primary_key=True)


@pytest.fixture
def engine(any_driver: str, wire: TDSServer) -> Iterator[Engine]:
    """Give the test an engine over each driver."""
    engine = ENGINES[any_driver](wire.port, pool_size=1, max_overflow=0)
    strategy_for(engine)
    yield engine
    engine.dispose()


def test_each_known_number_is_found_in_what_the_driver_itself_raises(
    engine: Engine, wire: TDSServer
) -> None:
    strategy, found = strategy_for(engine), {}
    for number in sorted(known_numbers()):
        with engine.connect() as connection:
            wire.database.failures.append(("FROM shop_customer", number))
            with pytest.raises(DBAPIError) as caught:
                connection.execute(select(Customer.__table__))
            assert caught.value.orig is not None
            found[number] = meanings(strategy.errors.native_code(caught.value.orig))
            connection.invalidate()  # its transaction may be gone
    assert found == {number: meanings(number) for number in found}


# The types of a text key, which decide whether an index of a varchar column can be sought: as
# docs/mssql.md says of each driver.
SENT = {
    "freetds": {("Narrow", "a"): "varchar", ("Narrow", "ä"): "varchar", ("Wide", "a"): "nvarchar"},
    "odbc18": {("Narrow", "a"): "varchar", ("Narrow", "ä"): "varchar", ("Wide", "a"): "nvarchar"},
    "pymssql": dict.fromkeys([("Narrow", "a"), ("Narrow", "ä"), ("Wide", "a")], "nvarchar"),
    "mssqlpython": {
        ("Narrow", "a"): "varchar",
        ("Narrow", "ä"): "nvarchar",
        ("Wide", "a"): "varchar",
    },
}


def type_sent(wire: TDSServer, key: str) -> str:
    """Return the type by which the key of the last lock was sent."""
    sent = said(wire, "UPDLOCK")[-1]
    if sent.how == "batch":
        return "nvarchar" if f"N'{key}'" in sent.text else "varchar"
    declared = wire.sessions[sent.session].declared[0].lower()
    return next(name for name in TYPES if f" {name}(" in declared)


def test_the_type_by_which_a_text_key_is_sent(
    engine: Engine, wire: TDSServer, any_driver: str
) -> None:
    found = {}
    for entity, key in SENT[any_driver]:
        for one in wire.sessions:
            one.declared.clear()
        with LockingSession(engine) as session:
            header: type[Base] = {"Narrow": Narrow, "Wide": Wide}[entity]
            session.get_entity(header, key, LockOptions.ForUpdate)
        found[entity, key] = type_sent(wire, key)
    assert found == SENT[any_driver]


def test_the_cure_is_that_of_the_driver(engine: Engine, wire: TDSServer, any_driver: str) -> None:
    words = {"pymssql": "pymssql sends", "mssqlpython": "mssql-python sends"}
    wire.database.failures.append(("FROM narrow", 8622))
    with (
        LockingSession(engine) as session,
        pytest.raises(LockNotSupported, match=words.get(any_driver, "as String, and not as")),
    ):
        session.get_entity(Narrow, "a", LockOptions.ForUpdate)
