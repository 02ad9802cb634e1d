"""The checks of check-outs: their table is missing, or the clocks run apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import Finding, check_database, checkout_table, document
from sa_doclock.tools.doctor import checkouts
from tests.integration.checkouts.models import Base
from tests.integration.doctor.test_models import Elsewhere
from tests.support.databases import Database

OURS = (
    "checkout-table-missing",
    "checkout-table-differs",
    "checkout-index-missing",
    "clocks-apart",
)


def findings(database: Database, base: object = Base) -> list[Finding]:
    return [
        one for one in check_database(database.engine(), base) if one.code in (*OURS, "not-checked")
    ]


def codes(database: Database, base: object = Base) -> dict[str, str]:
    return {one.code: one.text for one in findings(database, base)}


def test_nothing_is_wrong(database: Database) -> None:
    database.create(Base.metadata)
    assert codes(database) == {}


def test_the_table_is_missing(database: Database) -> None:
    found = codes(database)
    assert list(found) == ["checkout-table-missing"]
    assert "there is no table co_checkouts" in found["checkout-table-missing"]
    assert codes(database, Elsewhere) == {}  # nothing is checked out there


@pytest.mark.parametrize(("hours", "which"), [(1, "behind"), (-1, "ahead of")])
def test_the_clocks_run_apart(
    database: Database, monkeypatch: pytest.MonkeyPatch, hours: int, which: str
) -> None:
    database.create(Base.metadata)

    def wrong() -> datetime:
        return datetime.now(timezone.utc) + timedelta(hours=hours)

    monkeypatch.setattr(checkouts, "client_time", wrong)
    found = codes(database)
    assert list(found) == ["clocks-apart"]
    assert which in found["clocks-apart"]


class Changed(DeclarativeBase):
    """Its table of check-outs is another one in the database."""


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
SERVERS = ("postgresql", "mysql", "mariadb")  # SQLite has no types of columns
#: What is made of the columns, on which databases, and what the finding says.
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


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_table_that_is_not_ours(changed: Database, fault: str) -> None:
    changes, databases, expected = FAULTS[fault]
    if databases and changed.name not in databases:
        pytest.skip(f"only {', '.join(databases)} have this fault")
    create(changed, changes, indexes=False)  # MyISAM has none so long
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
