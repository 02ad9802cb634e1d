"""The rows of the table of check-outs, read and written on one connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    bindparam,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.orm import Mapper

from ...checkout_info import Checkout
from ...dialects import strategy_for
from ...dialects.base import Read, ServerClock
from ...errors import LockNotSupported
from ...keys import Identity, public_key
from .key_texts import DocumentName
from .table import UtcTimestamp

MILLISECOND: Final = timedelta(milliseconds=1)

_KEYS_OF_A_STATEMENT: Final = 500


@dataclass(frozen=True)
class CheckoutRow:
    """A row of the table, and the time at which it was read.

    :ivar id: None: the document has no row, and the others are None too.
    :ivar until: None: it was checked in.
    :ivar lease: milliseconds.
    """

    now: datetime
    id: str | None
    owner: str
    epoch: int
    since: datetime
    until: datetime | None
    lease: int
    note: str | None

    @property
    def is_valid(self) -> bool:
        """True if the owner has the document at this time."""
        return self.until is not None and self.until > self.now

    @property
    def open_epoch(self) -> int | None:
        """The epoch, even of an expired check-out; None: the document is checked in."""
        return None if self.until is None else self.epoch

    def as_checkout(self, root: Mapper[Any], identity: Identity) -> Checkout:
        """Return the row as a check-out; the document must not be checked in."""
        assert self.until is not None
        return Checkout(
            root.class_,
            public_key(identity),
            self.owner,
            self.epoch,
            self.since,
            self.until,
            self.note,
            self.lease * MILLISECOND,
            expired=not self.is_valid,
        )


_ROW: Final = [field.name for field in fields(CheckoutRow)][1:]

NO_ROW: Final = CheckoutRow(*cast("tuple[Any, ...]", (None,) * len(fields(CheckoutRow))))
"""The row of a document that was never checked out; it has no time."""


class CheckoutRows:
    """The rows of one table, read and written by one connection.

    :param latest: read the last commit by a locking read, if plain reads may be older.
    :raises LockNotSupported: the clock of this database is unknown.
    """

    def __init__(self, table: Table, connection: Connection, *, latest: bool = False) -> None:
        self.connection = connection
        self._table, self._latest = table, latest
        self._clock = _clock_of(connection)

    def read(self, document_ids: Iterable[str]) -> Mapping[str, CheckoutRow]:
        """Return the rows with these ids; documents without a row are missing."""
        ids, found = list(document_ids), dict[str, CheckoutRow]()
        statement = _rows_by_id(self._table, self._clock, latest=self._latest)
        for start in range(0, len(ids), _KEYS_OF_A_STATEMENT):
            some = {"ids": ids[start : start + _KEYS_OF_A_STATEMENT]}
            found |= {row.id: CheckoutRow(*row) for row in self.connection.execute(statement, some)}
        return found

    def read_one(self, name: DocumentName, *, timed: bool = True) -> CheckoutRow:
        """Return the row of this document, or NO_ROW.

        :param timed: return the time even without a row.
        """
        row: Any = self.connection.execute(*self.select_one(name, timed=timed)).one_or_none()
        return NO_ROW if row is None else CheckoutRow(*row)

    def select_one(self, name: DocumentName, *, timed: bool = True) -> Read:
        """Return the SELECT of ``read_one()``, and its parameters."""
        select_row = _row_and_time if timed else _row_by_id
        statement = select_row(self._table, self._clock, latest=self._latest)
        return statement, {"document_id": name.id}

    def insert(self, name: DocumentName, values: Mapping[str, Any]) -> None:
        """Insert the row of a document that has none."""
        of_document = {"id": name.id, "document": name.table, "ident": name.ident}
        self.connection.execute(insert(self._table).values({**of_document, **values}))

    def change(self, before: CheckoutRow, values: Mapping[str, Any]) -> bool:
        """Write to a row if it is unchanged; return whether it was."""
        until = self._table.c.until
        unchanged = until.is_(None) if before.until is None else until == before.until
        return self._write(before.id, before.epoch, unchanged, values)

    def change_open(self, name: DocumentName, epoch: int, values: Mapping[str, Any]) -> bool:
        """Write to the row of a check-out if it is open; return whether it was."""
        return self._write(name.id, epoch, self._table.c.until.is_not(None), values)

    def _write(
        self,
        document_id: str | None,
        epoch: int,
        condition: ColumnElement[bool],
        values: Mapping[str, Any],
    ) -> bool:
        table = self._table
        where = (table.c.id == document_id, table.c.epoch == epoch, condition)
        return self.connection.execute(update(table).where(*where).values(values)).rowcount == 1

    def select_open(
        self,
        tables: Sequence[str] | None,
        owner: str | None,
        *,
        expired: bool,
        most: int | None = None,
    ) -> Sequence[Row[Any]]:
        """Return the rows of the check-outs, each followed by ``document`` and ``ident``.

        :param tables: of the documents; None: all.
        :param expired: include expired check-outs.
        :param most: the largest number of rows.
        """
        table, now = self._table, _now(self._clock)
        statement = _select_row(table, now).add_columns(table.c.document, table.c.ident)
        statement = statement.where(table.c.until.is_not(None))
        if tables is not None:
            statement = statement.where(table.c.document.in_(tables))
        if owner is not None:
            statement = statement.where(table.c.owner == owner)
        if not expired:
            statement = statement.where(table.c.until > now)
        statement = statement.order_by(table.c.since, table.c.id).limit(most)
        return self.connection.execute(statement).all()


def list_checkouts(
    connection: Connection, table: Table, owner: str | None
) -> Sequence[dict[str, Any]]:
    """Return all check-outs, even expired ones, without a program's classes."""
    found = CheckoutRows(table, connection).select_open(None, owner, expired=True)
    return [
        {
            "table": row.document,
            "ident": row.ident,
            "owner": row.owner,
            "epoch": row.epoch,
            "since": row.since,
            "until": row.until,
            "note": row.note,
            "expired": row.until <= row.now,
        }
        for row in found
        if owner is None or row.owner == owner  # may ignore case
    ]


def _clock_of(connection: Connection) -> ServerClock:
    strategy = strategy_for(connection)
    if strategy.clock is None:
        raise LockNotSupported(
            f"check-outs need the server's clock, and the lock dialect of {strategy.name} does "
            "not know it; give its LockStrategy a ServerClock"
        )
    return strategy.clock


def _now(clock: ServerClock) -> ColumnElement[datetime]:
    return literal_column(clock.now, UtcTimestamp())


def _select_row(table: Table, now: ColumnElement[datetime]) -> Select[Any]:
    return select(now.label("now"), *(table.c[name] for name in _ROW))


# Threads: a cache; two threads that miss at once build equal statements.
@lru_cache(maxsize=64)
def _rows_by_id(table: Table, clock: ServerClock, *, latest: bool) -> Select[Any]:
    statement = _select_row(table, _now(clock))
    statement = statement.where(table.c.id.in_(bindparam("ids", expanding=True)))
    return statement.with_for_update() if latest else statement


@lru_cache(maxsize=64)
def _row_by_id(table: Table, clock: ServerClock, *, latest: bool) -> Select[Any]:
    statement = _select_row(table, _now(clock)).where(table.c.id == bindparam("document_id"))
    return statement.with_for_update() if latest else statement


@lru_cache(maxsize=64)
def _row_and_time(table: Table, clock: ServerClock, *, latest: bool) -> Select[Any]:
    """Return the SELECT of the row with this ``:document_id``, and of the time in any case."""
    time = select(_now(clock).label("now")).subquery("doclock_time")
    statement = _select_row(table, time.c.now).select_from(
        time.outerjoin(table, table.c.id == bindparam("document_id"))
    )
    return statement.with_for_update(of=table) if latest else statement
