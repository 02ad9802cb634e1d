"""CheckoutReader: reads the check-outs of locked documents, on the connections of the locks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Engine, Table, inspect, update
from sqlalchemy.orm import Mapper, Session

from ...core.documents import own_table
from ...core.ledger import RowPlace, place_of
from ...core.transaction import LockContext
from ...dialects import levels_for, locking_read_is_latest, strategy_for
from ...dialects.base import Read
from ...errors import LockNotSupported, WrongIsolation
from ...keys import DocumentKey, Identity
from ...options import LockOptions
from .key_texts import document_name, read_key, table_name
from .table_rows import NO_ROW, CheckoutRow, CheckoutRows


class CheckoutReader:
    """The rows of the table, as one session reads them.

    :ivar table: of the check-outs.
    """

    def __init__(self, state: LockContext, table: Table) -> None:
        self.table = table
        self.session = state.session
        self._state: Callable[[], LockContext] = ref(state)  # type: ignore[assignment]

    @property
    def binds(self) -> dict[Mapper[Any], Engine | Connection]:
        """The databases of documents in this transaction, by their roots."""
        return self.state.transaction.memory(self, dict)

    @property
    def state(self) -> LockContext:
        """The state of the session."""
        return self._state()

    def connection(self, root: Mapper[Any], *, writes: bool = False) -> Connection:
        """Return the connection to the database of these documents; it may begin a transaction.

        :param writes: choose the primary if the session routes reads to replicas.
        """
        session = self.session()
        bind = self.binds.get(root)
        if bind is not None:
            return Session.connection(session, {"bind": bind})
        arguments = {"mapper": root, "clause": update(self.table)} if writes else {"mapper": root}
        return Session.connection(session, arguments)

    def check_place(self, root: Mapper[Any], place: RowPlace | None) -> None:
        """Check that the connection has the check-outs of the documents at this place.

        :raises LockNotSupported: a ``schema_translate_map`` of the statement leads to another schema.
        """
        if place is None:
            return
        own = place_of(self.connection(root)).schemas
        for table in (own_table(root), self.table):
            name = table.schema
            if place.schemas.get(name, name) != own.get(name, name):
                raise LockNotSupported(
                    f"the schema_translate_map of the statement names rows in {place}, but check-outs are "
                    "read with the map of the connection. Set the map there: "
                    "engine.execution_options(schema_translate_map=...)"
                )

    def select(self, root: Mapper[Any], key: Identity, *, timed: bool) -> Read:
        """Return the SELECT of ``read_one()``, and its parameters."""
        rows = self._rows(root)
        return rows.select_one(document_name(rows.connection, root, key), timed=timed)

    def read_one(self, root: Mapper[Any], key: Identity, *, timed: bool) -> CheckoutRow:
        """Return the row of the locked document with this key, or NO_ROW.

        :param timed: return the time even without a row.
        """
        rows = self._rows(root)
        return rows.read_one(document_name(rows.connection, root, key), timed=timed)

    def read(
        self, documents: Sequence[DocumentKey], *, timed: bool
    ) -> dict[DocumentKey, CheckoutRow]:
        """Return the rows of locked documents, by one statement for each class."""
        by_root: dict[Mapper[Any], list[Identity]] = {}
        for entity, key in documents:
            by_root.setdefault(inspect(entity), []).append(key)
        return {
            (root.class_, key): row
            for root, keys in by_root.items()
            for key, row in self._read(root, keys, timed=timed)
        }

    def _read(
        self, root: Mapper[Any], keys: Sequence[Identity], *, timed: bool
    ) -> Sequence[tuple[Identity, CheckoutRow]]:
        if len(keys) == 1:
            return [(keys[0], self.read_one(root, keys[0], timed=timed))]
        rows = self._rows(root)
        ids = {key: document_name(rows.connection, root, key).id for key in keys}
        found = rows.read(ids.values())
        return [(key, found.get(document_id, NO_ROW)) for key, document_id in ids.items()]

    def find_taken(self, root: Mapper[Any], keys: Sequence[Identity]) -> frozenset[Identity]:
        """Return the keys among these whose documents are checked out."""
        connection = self.connection(root)
        names = {document_name(connection, root, key).id: key for key in keys}
        rows = CheckoutRows(self.table, connection).read(names)
        return frozenset(names[found] for found, row in rows.items() if row.is_valid)

    def find_all_taken(self, root: Mapper[Any], most: int) -> list[DocumentKey]:
        """Return up to this many checked-out documents of this root, without a lock."""
        connection = self.connection(root)
        rows = CheckoutRows(self.table, connection).select_open(
            [table_name(connection, root)], None, expired=False, most=max(most, 0)
        )
        keys = (read_key(root, row.ident) for row in rows)
        return [(root.class_, key) for key in keys if key is not None]

    def _rows(self, root: Mapper[Any]) -> CheckoutRows:
        connection = self.connection(root)
        return CheckoutRows(self.table, connection, latest=self._must_read_latest(connection))

    def _must_read_latest(self, connection: Connection) -> bool:
        """Return whether only a locking read sees the latest commit.

        :raises WrongIsolation: no read sees it at this isolation level.
        """
        strategy, joined = strategy_for(connection), self.state.connections.find(connection)
        level = None if joined is None else self.state.connections.current_level(joined)
        levels = levels_for(strategy.isolation, LockOptions.ForUpdate)
        if not levels or level in levels:
            return False
        if locking_read_is_latest(strategy.isolation):
            return True
        raise WrongIsolation(
            f"the transaction is open at {level}, which cannot see check-outs that were committed "
            f"after it began; lock in a transaction at {levels[0]}"
        )
