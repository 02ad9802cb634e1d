"""The checks of document tables, on tables with and without the fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, registry, relationship

from sa_doclock import Finding, check_database, checkout_table, document
from sa_doclock.tools.doctor import checkouts
from tests.integration.checkouts.models import Base as CheckoutsBase
from tests.support.databases import Database


class Base(DeclarativeBase):
    pass


@document(parts=("lines",))
class Order(Base):
    __tablename__ = "dr_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    lines: Mapped[list[Line]] = relationship()


class Line(Base):
    __tablename__ = "dr_line"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("dr_order.id"))


class Elsewhere(DeclarativeBase):
    """A base without headers, so the doctor checks nothing."""


Make = Callable[..., None]


@pytest.fixture
def make(database: Database) -> Iterator[Make]:
    """Return a function that recreates both tables, with these words appended to their DDL."""
    statements = (
        "DROP VIEW IF EXISTS dr_order",
        "DROP TABLE IF EXISTS dr_line",
        "DROP TABLE IF EXISTS dr_order",
    )

    def drop() -> None:
        with database.observer().connect() as connection:
            for statement in statements:
                if "VIEW" not in statement or _is_view(connection):
                    connection.exec_driver_sql(statement)

    def make_tables(*more: str, key: str = "PRIMARY KEY", end: str = "", order: str = "") -> None:
        drop()
        with database.observer().connect() as connection:
            connection.exec_driver_sql(
                order or f"CREATE TABLE dr_order (id integer NOT NULL {key}){end}"
            )
            connection.exec_driver_sql(
                f"CREATE TABLE dr_line (id integer NOT NULL PRIMARY KEY, order_id integer NOT NULL){end}"
            )
            for statement in more:
                connection.exec_driver_sql(statement)

    yield make_tables
    drop()


def _is_view(connection: sa.Connection) -> bool:
    return "dr_order" in sa.inspect(connection).get_view_names()


def found(database: Database, code: str) -> list[Finding]:
    return [one for one in check_database(database.engine(), Base) if one.code == code]


def cure(database: Database, finding: Finding) -> None:
    """Execute the suggested cure."""
    with database.observer().connect() as connection:
        connection.exec_driver_sql(finding.cure)


def test_a_part_without_an_index(database: Database, make: Make) -> None:
    make()
    (finding,) = found(database, "part-without-index")
    assert "dr_line has no index on (order_id)" in finding.text
    cure(database, finding)
    assert found(database, "part-without-index") == []


def test_an_index_that_begins_with_the_foreign_key_is_enough(
    database: Database, make: Make
) -> None:
    make("CREATE INDEX dr_ix ON dr_line (order_id, id)")
    assert found(database, "part-without-index") == []
    make("CREATE INDEX dr_ix ON dr_line (id, order_id)")
    assert len(found(database, "part-without-index")) == 1


@pytest.mark.not_databases("sqlite")  # it cannot add a primary key
def test_a_key_that_is_not_unique(database: Database, make: Make) -> None:
    make(key="")
    (finding,) = found(database, "key-not-unique")
    cure(database, finding)
    assert found(database, "key-not-unique") == []


def test_a_key_with_a_unique_index_is_enough(database: Database, make: Make) -> None:
    make(key="")
    assert len(found(database, "key-not-unique")) == 1
    make("CREATE UNIQUE INDEX dr_ux ON dr_order (id)", key="")
    assert found(database, "key-not-unique") == []


def test_a_table_that_is_missing(database: Database, make: Make) -> None:
    make("DROP TABLE dr_line")
    (finding,) = found(database, "table-missing")
    assert "dr_line" in finding.text
    assert found(database, "not-checked") == []
    make()
    assert found(database, "table-missing") == []


@pytest.mark.databases("postgresql")
def test_tables_are_looked_for_in_the_schema_that_the_engine_says(
    database: Database, make: Make
) -> None:
    make()
    with database.observer().connect() as connection:
        connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS dr_other")
        try:
            connection.exec_driver_sql("CREATE TABLE dr_other.dr_order (id integer NOT NULL)")
            engine = database.engine().execution_options(schema_translate_map={None: "dr_other"})
            reported = {one.code: one for one in check_database(engine, Base)}
            assert "dr_line" in reported["table-missing"].text
            connection.exec_driver_sql(reported["key-not-unique"].cure)
            assert "key-not-unique" not in {one.code for one in check_database(engine, Base)}
        finally:
            connection.exec_driver_sql("DROP SCHEMA dr_other CASCADE")


@pytest.mark.databases("mysql", "mariadb")
def test_a_table_without_row_locks(database: Database, make: Make) -> None:
    make(end=" ENGINE=MyISAM")
    both = found(database, "table-cannot-lock")
    assert ["'dr_order'" in one.text or "'dr_line'" in one.text for one in both] == [True, True]
    for finding in both:
        cure(database, finding)
    assert found(database, "table-cannot-lock") == []


@pytest.mark.databases("mysql", "mariadb")
def test_without_models_all_tables_of_the_database_count(database: Database, make: Make) -> None:
    def others() -> list[Finding]:
        reported = check_database(database.engine())
        return [
            one
            for one in reported
            if one.code == "other-storage-engines" and "dr_order" in one.text
        ]

    make(end=" ENGINE=MyISAM")
    (finding,) = others()
    cure(database, finding)
    assert others() == []


@pytest.mark.databases("postgresql")
def test_a_header_that_is_a_view(database: Database, make: Make) -> None:
    make(order="CREATE VIEW dr_order AS SELECT 1 AS id")
    (finding,) = found(database, "foreign-table")
    assert "dr_order is a view" in finding.text
    make()
    assert found(database, "foreign-table") == []


@pytest.mark.databases("sqlite")
def test_a_base_without_headers_and_a_registry(database: Database) -> None:
    engine = database.engine()
    for base in (Elsewhere, registry(), Base.registry):
        assert isinstance(check_database(engine, base), list)


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("base", [object, Order.__table__, "Base", sa.MetaData()])
def test_what_is_no_base(database: Database, base: object) -> None:
    with pytest.raises(TypeError, match="base must be a declarative base or a registry"):
        check_database(database.engine(), base)


def test_what_is_no_engine() -> None:
    with pytest.raises(TypeError, match="needs an Engine"):
        check_database("sqlite://")  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------
# The check-out checks report a missing table and clocks that differ.

OURS = (
    "checkout-table-missing",
    "checkout-table-differs",
    "checkout-index-missing",
    "clocks-apart",
)


def findings(database: Database, base: object = CheckoutsBase) -> list[Finding]:
    return [
        one for one in check_database(database.engine(), base) if one.code in (*OURS, "not-checked")
    ]


def codes(database: Database, base: object = CheckoutsBase) -> dict[str, str]:
    return {one.code: one.text for one in findings(database, base)}


def test_nothing_is_wrong(database: Database) -> None:
    database.create(CheckoutsBase.metadata)
    assert codes(database) == {}


def test_the_table_is_missing(database: Database) -> None:
    found = codes(database)
    assert list(found) == ["checkout-table-missing"]
    assert "there is no table co_checkouts" in found["checkout-table-missing"]
    assert codes(database, Elsewhere) == {}  # no class has check-outs


@pytest.mark.parametrize(("hours", "which"), [(1, "behind"), (-1, "ahead of")])
def test_the_clocks_run_apart(
    database: Database, monkeypatch: pytest.MonkeyPatch, hours: int, which: str
) -> None:
    database.create(CheckoutsBase.metadata)

    def wrong() -> datetime:
        return datetime.now(timezone.utc) + timedelta(hours=hours)

    monkeypatch.setattr(checkouts, "client_time", wrong)
    found = codes(database)
    assert list(found) == ["clocks-apart"]
    assert which in found["clocks-apart"]


class Changed(DeclarativeBase):
    """Its check-out table differs from the one in the database."""


@document(checkout=True)
class Parcel(Changed):
    __tablename__ = "co_parcels"
    id: Mapped[int] = mapped_column(primary_key=True)


NAME = "co_changed"
checkout_table(Changed.metadata, NAME)
AS_WANTED = {
    "id": "VARCHAR(64) NOT NULL PRIMARY KEY",
    "document": "VARCHAR(255) NOT NULL",
    "ident": "TEXT NOT NULL",
    "owner": "VARCHAR(255) NOT NULL",
    "epoch": "BIGINT NOT NULL",
    "since": "{time} NOT NULL",
    "until": "{time}",
    "lease": "BIGINT NOT NULL",
    "note": "TEXT",
}
TIMES = {"postgresql": "TIMESTAMP", "mysql": "DATETIME(6)", "mariadb": "DATETIME(6)"}
SERVERS = ("postgresql", "mysql", "mariadb")  # SQLite has no column types
#: The change of the columns, the databases, and the text of the finding.
FAULTS: dict[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "no column": ({"note": ""}, (), "has no column note"),
    "no key": ({"id": "VARCHAR(64) NOT NULL"}, (), "two owners"),
    "short owner": (
        {"owner": "VARCHAR(40) NOT NULL"},
        SERVERS,
        "owner .* shorter than VARCHAR.255",
    ),
    "short note": ({"note": "VARCHAR(200)"}, SERVERS, "note .* shorter than TEXT"),
    "number for a text": ({"ident": "BIGINT NOT NULL"}, SERVERS, "ident .* not a text"),
    "text for a number": ({"epoch": "VARCHAR(20) NOT NULL"}, SERVERS, "epoch .* 64 bits"),
    "padded owner": ({"owner": "CHAR(255) NOT NULL"}, SERVERS, "owner .* adds blanks"),
    "until not null": ({"until": "{time} NOT NULL"}, (), "until .* is NOT NULL"),
    "one more": ({"extra": "INTEGER NOT NULL"}, (), "extra .* has no value"),
    "32 bits": ({"lease": "INTEGER NOT NULL"}, SERVERS, "lease .* 64"),
    "time zone": ({"since": "TIMESTAMPTZ NOT NULL"}, ("postgresql",), "since .* with a time zone"),
    "seconds": ({"since": "TIMESTAMP(0) NOT NULL"}, ("postgresql",), "since .*does not keep"),
    "whole seconds": ({"until": "DATETIME"}, ("mysql", "mariadb"), "until .*does not keep"),
    "zone of session": (
        {"since": "TIMESTAMP(6) NOT NULL"},
        ("mysql", "mariadb"),
        "since .* is TIMESTAMP.*does not keep a time as DATETIME.6",
    ),
    "engine": ({"": "ENGINE=MyISAM"}, ("mysql", "mariadb"), "MyISAM"),
    "character set": ({"": "CHARACTER SET latin1"}, ("mysql", "mariadb"), "character set latin1"),
}


def create(database: Database, changes: dict[str, str], *, indexes: bool = True) -> None:
    columns = {**AS_WANTED, **changes}
    end = columns.pop("", "")
    time = TIMES.get(database.name, "DATETIME")
    written = ", ".join(f"{k} {v.format(time=time)}" for k, v in columns.items() if v)
    with database.engine().begin() as connection:
        connection.execute(sa.text(f"DROP TABLE IF EXISTS {NAME}"))
        connection.execute(sa.text(f"CREATE TABLE {NAME} ({written}) {end}"))
        for name, over in (("owner", "owner, until"), ("until", "until")) if indexes else ():
            connection.execute(sa.text(f"CREATE INDEX ix_{NAME}_{name} ON {NAME} ({over})"))


@pytest.fixture
def changed(database: Database) -> Iterator[Database]:
    yield database
    with database.engine().begin() as connection:
        connection.execute(sa.text(f"DROP TABLE IF EXISTS {NAME}"))


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_a_table_of_the_program_that_is_as_ours(changed: Database) -> None:
    create(changed, {})
    assert findings(changed, Changed) == []
    create(changed, {"id": "VARCHAR(64) NOT NULL", "extra": "INTEGER", "UNIQUE": "(id)"})
    assert findings(changed, Changed) == []


@pytest.mark.own_logic
@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_table_that_is_not_ours(changed: Database, fault: str) -> None:
    changes, databases, expected = FAULTS[fault]
    if databases and changed.name not in databases:
        pytest.skip(f"only {', '.join(databases)} have this fault")
    create(changed, changes, indexes=False)  # MyISAM has none this long
    (found,) = (one for one in findings(changed, Changed) if one.code != "checkout-index-missing")
    assert (found.code, found.severity) == ("checkout-table-differs", "error")
    assert re.search(expected, found.text), found.text
    assert found.cure


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_an_index_is_missing(changed: Database) -> None:
    create(changed, {}, indexes=False)
    found = findings(changed, Changed)
    assert [one.code for one in found] == ["checkout-index-missing"] * 2
    with changed.engine().begin() as connection:
        for one in found:
            connection.execute(sa.text(one.cure.rstrip(";")))
    assert findings(changed, Changed) == []
