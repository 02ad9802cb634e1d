"""The table of check-outs: one row for each document that was ever checked out."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Index,
    MetaData,
    String,
    Table,
    TypeDecorator,
    Unicode,
    UnicodeText,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from ...dialects import strategy_class
from ...keys import key_text

NAME: Final = "doclock_checkouts"

LONGEST_OWNER: Final = 255
"""The number of UTF-16 code units of an owner: an index of SQL Server has at most 1,700 bytes."""

LONGEST_NOTE: Final = 65_535
"""The number of bytes of a note in UTF-8: those of MySQL's TEXT."""

COLUMNS: Final = ("id", "document", "ident", "owner", "epoch", "since", "until", "lease", "note")

INDEXES: Final = {"owner": ("owner", "until"), "until": ("until",)}
"""The columns of each index, by the end of its name."""


class UtcTimestamp(TypeDecorator[datetime]):
    """A time in UTC with microseconds: aware in Python, without a time zone in the database."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of this database that keeps microseconds."""
        found = strategy_class(dialect)
        clock = None if found is None else found.clock
        return dialect.type_descriptor(DateTime() if clock is None else clock.timestamp())

    def process_bind_param(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Return the time without its zone."""
        return None if value is None else value.astimezone(timezone.utc).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Return the time with its zone."""
        return None if value is None else value.replace(tzinfo=timezone.utc)


def checkout_table(metadata: MetaData, name: str = NAME, schema: str | None = None) -> Table:
    """Return the table of check-outs, as part of this metadata.

    Pass it to ``LockingSession(checkouts=table)``. Create it in the database of the documents, by
    ``op.create_checkout_table()`` (``sa_doclock.alembic``) or ``metadata.create_all()``. It has one
    row for each document that was ever checked out, and does not grow when check-outs are renewed.

    Example::

        table = checkout_table(metadata)
        Session = sessionmaker(engine, class_=LockingSession, checkouts=table)

    :param name: the name of the table; those of its indexes begin with ``ix_`` and this name.
    :param schema: the schema of the table; None: the default schema of the connection.
    :raises TypeError: ``metadata`` is not a MetaData, or a name is not a str.
    :raises ValueError: an empty name.
    :raises sqlalchemy.exc.InvalidRequestError: the metadata has a table of this name already.
    """
    if not isinstance(metadata, MetaData):
        raise TypeError(
            f"checkout_table() takes a MetaData, such as Base.metadata, not {key_text(metadata)}"
        )
    for argument, given in (("name", name), ("schema", "schema" if schema is None else schema)):
        if not isinstance(given, str):
            raise TypeError(
                f"the {argument} of checkout_table() must be a str, not {key_text(given)}"
            )
        if not given:
            raise ValueError(f"the {argument} of checkout_table() must not be empty")
    return Table(
        name,
        metadata,
        # A hash of the key: independent of collations, and never too long.
        Column("id", String(64), primary_key=True),
        Column("document", Unicode(255), nullable=False),
        Column("ident", UnicodeText(), nullable=False),
        Column("owner", Unicode(LONGEST_OWNER), nullable=False),
        Column("epoch", BigInteger(), nullable=False, autoincrement=False),
        Column("since", UtcTimestamp(), nullable=False),
        Column("until", UtcTimestamp()),  # NULL: checked in
        Column("lease", BigInteger(), nullable=False),  # milliseconds
        Column("note", UnicodeText()),
        *(Index(f"ix_{name}_{end}", *columns) for end, columns in INDEXES.items()),
        schema=schema,
        # The defaults may be an engine without transactions, or a character set without the
        # owner's.
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
    )


def check_table(table: object) -> Table:
    """Return the table.  :raises TypeError: :func:`checkout_table` did not make it."""
    if not isinstance(table, Table) or not set(COLUMNS) <= set(table.columns.keys()):
        raise TypeError(f"checkouts must be a table made by checkout_table(), not {table!r}")
    return table
