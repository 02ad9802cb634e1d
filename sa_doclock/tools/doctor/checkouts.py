"""Checks of check-outs: their table and their clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.schema import CreateColumn
from sqlalchemy.types import TypeEngine

from ...core.documents import declares, own_table
from ...dialects import schema_of
from ...errors import LockNotSupported
from ...features.checkouts import COLUMNS, INDEXES, LONGEST_NOTE, UtcTimestamp, checkout_table
from .check import Problem, Subject, check, problem_of_table

_APART: Final = timedelta(seconds=30)
"""More than clocks that are synchronized over the network differ."""


def _tables(subject: Subject) -> list[sa.Table]:
    headers = [own_table(mapper) for mapper in subject.headers if declares(mapper, "checkout")]
    found = [
        table
        for metadata in dict.fromkeys(header.metadata for header in headers)
        for table in metadata.tables.values()
        if set(COLUMNS) <= set(table.columns.keys())
    ]
    return found or [checkout_table(sa.MetaData())] * bool(headers)


@check("checkout-table-missing", "warning")
def checkout_table_missing(subject: Subject) -> Iterator[Problem]:
    """A class has `@document(checkout=True)`, but the database has no table of check-outs: every
    ForUpdate lock of a session with `checkouts=` fails.
    """
    for table in _tables(subject):
        if not subject.has(table):
            yield Problem(
                f"there is no table {table.fullname}, which says who has documents checked out",
                "op.create_checkout_table() in a migration; if it has another name, give "
                "checkout_table() the metadata of the documents",
            )


@check("checkout-table-differs", "error")
def checkout_table_differs(subject: Subject) -> Iterator[Problem]:
    """The table of check-outs differs from `checkout_table()`: a column is missing, of another
    type, too short, with a time zone, or required and unknown; `id` is not unique, so that a
    document may have two owners; or the storage engine has no transactions.
    """
    for table in filter(subject.has, _tables(subject)):
        columns = subject.inspector.get_columns(table.name, schema_of(subject.connection, table))
        found = {column["name"]: column for column in columns}
        for name in COLUMNS:
            yield from _problems_of(subject, table.c[name], found.get(name))
        for name in found.keys() - table.columns.keys():
            if not found[name]["nullable"] and found[name]["default"] is None:
                yield Problem(
                    f"the column {name} of {table.fullname} is NOT NULL, and sa_doclock has no value "
                    "for it",
                    "drop it, or give it a default",
                )
        yield from _problems_of_table(subject, table)


def _problems_of(
    subject: Subject, column: sa.Column[Any], found: ReflectedColumn | None
) -> Iterator[Problem]:
    table = column.table.fullname
    definition = CreateColumn(column).compile(dialect=subject.connection.dialect)
    if found is None:
        yield Problem(
            f"the table {table} has no column {column.name}",
            f"ALTER TABLE {table} ADD {definition};",
        )
        return
    for problem in _problems_of_column(subject, column, found):
        yield Problem(
            f"the column {column.name} of {table} {problem}",
            f"in a migration, change it to: {definition}",
        )


def _problems_of_column(
    subject: Subject, column: sa.Column[Any], found: ReflectedColumn
) -> Iterator[str]:
    dialect = subject.connection.dialect
    wanted, text = (
        column_type.compile(dialect=dialect) for column_type in (column.type, found["type"])
    )
    problem = _problem_of_type(column, wanted, found["type"], text)
    if problem and subject.strategy.limits_by_type:
        yield f"is {text}, {problem}"
    if column.nullable and not found["nullable"]:
        yield "is NOT NULL; it is NULL where there is nothing to say"


def _problem_of_type(
    column: sa.Column[Any], wanted: str, there: TypeEngine[Any], text: str
) -> str | None:
    """Return the fault of a column's type, or None.

    :param wanted: the type in ``checkout_table()``.
    """
    if isinstance(column.type, UtcTimestamp):
        if getattr(there, "timezone", False):
            return f"with a time zone; its values are in UTC without one ({wanted})"
        return None if text == wanted else f"which does not keep a time as {wanted} does"
    if isinstance(column.type, sa.BigInteger):
        return None if isinstance(there, sa.BigInteger) else "which does not keep 64 bits"
    return _problem_of_text(column, wanted, there, text)


def _problem_of_text(
    column: sa.Column[Any], wanted: str, there: TypeEngine[Any], text: str
) -> str | None:
    if not isinstance(there, sa.String):
        return "which is not a text"
    if wanted.startswith("N") and not text.startswith("N"):
        return "which does not keep every character"
    if there.length is not None and there.length < (
        getattr(column.type, "length", None) or LONGEST_NOTE
    ):
        return f"which is shorter than {wanted}"
    padded = isinstance(there, (sa.CHAR, sa.NCHAR)) and not column.primary_key
    return "which adds blanks" if padded else None


def _problems_of_table(subject: Subject, table: sa.Table) -> Iterator[Problem]:
    if not any(unique and columns == ["id"] for columns, unique in subject.indexes(table)):
        yield Problem(
            f"the column id of {table.fullname} is not unique, so that a document may have two owners",
            f"ALTER TABLE {table.fullname} ADD PRIMARY KEY (id);",
        )
    try:
        subject.strategy.check_table(subject.connection, table)
    except LockNotSupported as error:
        yield problem_of_table(error)
    options = subject.inspector.get_table_options(table.name, schema_of(subject.connection, table))
    for option, value in options.items():
        if option.endswith("charset") and not str(value).startswith("utf8mb4"):
            yield Problem(
                f"the table {table.fullname} has the character set {value}, which cannot store every "
                "owner and note",
                f"ALTER TABLE {table.fullname} CONVERT TO CHARACTER SET utf8mb4;",
            )


@check("checkout-index-missing", "warning")
def checkout_index_missing(subject: Subject) -> Iterator[Problem]:
    """The table of check-outs has no index on its owners or on its times: `session.checkouts()`
    reads the whole table, which has a row for each document that was ever checked out.
    """
    for table in filter(subject.has, _tables(subject)):
        there = [tuple(columns) for columns, _ in subject.indexes(table)]
        for columns in INDEXES.values():
            if not any(index[: len(columns)] == columns for index in there):
                yield Problem(
                    f"the table {table.fullname} has no index on {', '.join(columns)}",
                    f"CREATE INDEX ix_{table.name}_{columns[0]} ON {table.fullname} "
                    f"({', '.join(columns)});",
                )


@check("clocks-apart", "warning")
def clocks_apart(subject: Subject) -> Iterator[Problem]:
    """The database's clock differs from this machine's by more than 30 seconds. Check-outs go by
    the database's clock alone. A page that shows "until 10:17" shows the wrong time; after a
    failover to a machine with another clock, check-outs end early or late.
    """
    clock = subject.strategy.clock
    if clock is None or not _tables(subject):
        return
    before = client_time()
    expression = sa.literal_column(clock.now, UtcTimestamp())
    there = subject.connection.execute(sa.select(expression)).scalar_one()
    ahead, behind = there - client_time(), before - there
    apart = max(ahead, behind)
    if apart > _APART:
        which = "ahead of" if ahead > behind else "behind"
        yield Problem(
            f"the clock of the database is {apart.total_seconds():.0f} s {which} that of this machine",
            "set the clocks of all machines by NTP",
        )


def client_time() -> datetime:
    """Return this machine's time."""
    return datetime.now(timezone.utc)
