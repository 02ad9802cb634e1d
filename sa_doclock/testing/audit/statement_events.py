"""The events of engines: statements as they are sent, and transactions of connections."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any, Final

from sqlalchemy import Connection

from ..server_waits import locks_database
from .isolation import commits_each_statement
from .places import places_of_program
from .rows import Row, entity_name, entity_of_table, header_rows_of_values, mapper_of_statement
from .sent import Sent, UpdateSent, facts_of, key_of
from .transactions import RowLock, Transaction
from .watched import Watched, here

_MOST_VALUES: Final = 100  # of one INSERT, whose rows are looked at


class StatementEvents:
    """Listeners of ``Engine``; each method has the name of an event, or of two."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def begin(self, connection: Connection, *_: object) -> None:
        """Begin a transaction; if it is a session's, ``after_begin`` follows."""
        self._watched.begin(connection)

    def commit(self, connection: Connection, *_: object) -> None:
        self._watched.end(connection, committed=True)

    def rollback(self, connection: Connection, *_: object) -> None:
        self._watched.end(connection, committed=False)

    def before_cursor_execute(
        self,
        connection: Connection,
        _cursor: Any,
        text: str,
        _parameters: Any,
        context: Any,
        _many: bool,
    ) -> None:
        """Judge a statement by its text, and by what it was compiled from."""
        watched = self._watched
        watched.statements += 1
        transaction = watched.transaction_of(connection)
        watched.measure_idle(transaction)
        sent = facts_of(text, context)
        transaction.changes_schema |= bool(getattr(context, "isddl", False))
        if sent.locks_widely or sent.begins:
            watched.note_wide_lock(connection, sent)
        if sent.asks or sent.is_select:
            self._note_select(connection, transaction, sent)
        elif sent.writes:
            transaction.has_written = True
            if not watched.is_in_flush(connection):
                self._note_write(transaction, sent, context)

    def after_cursor_execute(self, connection: Connection, *_: Any) -> None:
        """Begin to measure how long no statement runs."""
        self._watched.transaction_of(connection).idle_since = time.perf_counter()

    def _note_write(self, transaction: Transaction, sent: Sent, context: Any) -> None:
        if sent.update is not None:
            self._note_update(transaction, sent.update, context)
        elif sent.is_insert:
            self._note_insert(transaction, context)

    def _note_select(self, connection: Connection, transaction: Transaction, sent: Sent) -> None:
        user = self._watched.user_of(connection)
        reading = None if user is None else user.reading
        if sent.asks:
            self._check_effect(connection, transaction, sent)
            transaction.note_row_locks(sent.tables, reading, here())
        else:
            place = here() if reading is None else reading.place
            for rule in self._watched.rules:
                rule.read_table(transaction, sent.tables, place)

    def _check_effect(self, connection: Connection, transaction: Transaction, sent: Sent) -> None:
        written = transaction.has_written and locks_database(connection)
        if transaction.has_wide_lock or written or (transaction.finds_conflicts and not sent.locks):
            return  # the transaction has what the SQL lacks
        database = connection.dialect.name
        if not sent.locks:
            reason = "the SQL that is sent has no lock in it"
        elif commits_each_statement(connection):
            reason = "the connection commits each statement, which ends the lock"
        else:
            return
        place = here()
        for rule in self._watched.rules:
            rule.without_effect(sent, database, reason, place)

    def _note_insert(self, transaction: Transaction, context: Any) -> None:
        mapper = mapper_of_statement(context.compiled.statement)
        if mapper is None:
            return
        place, detail = here(), entity_name(mapper)
        transaction.inserted_into.add(detail)
        for values in islice(context.compiled_parameters, _MOST_VALUES):
            headers = list(header_rows_of_values(mapper, values))
            for rule in self._watched.rules:
                rule.inserted(transaction, detail, headers, place)

    def _note_update(self, transaction: Transaction, update: UpdateSent, context: Any) -> None:
        key = key_of(update, context)
        row = None
        if key is not None:
            row = Row(entity_of_table(update.table, context.compiled.statement), key)
        places = places_of_program()
        for rule in self._watched.rules:
            rule.updated(transaction, update, row, places)
        if row is not None:
            self._watched.acquire(transaction, row, RowLock(places[0], by_write=True))
