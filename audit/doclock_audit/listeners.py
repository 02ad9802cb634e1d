"""Listens to SQLAlchemy's events for an audit: events of engines, sessions and mapped objects."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final
from weakref import ref

from sqlalchemy import ClauseElement, Connection, Result, Select, Table, inspect
from sqlalchemy.orm import InstanceState, Mapper, ORMExecuteState, Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state

from sa_doclock import LockingSession, LockOptions
from sa_doclock.testing.instruments import (
    DocumentKey,
    LockedName,
    buffer_rows,
    for_update_of,
    is_row_lock,
    locks_database,
)

from .inserts import NewRow
from .places import Place, Places, places_of_program
from .rows import (
    Row,
    changed_attributes,
    entity_name,
    entity_of_class,
    entity_of_table,
    header_rows_of_values,
    mapper_of_statement,
    mapper_of_table,
    row_of,
    row_written,
)
from .sent import (
    OwnRead,
    Sent,
    WriteSent,
    asks_for_lock,
    facts_of,
    key_sent,
    parameters_of,
    plain_name,
    values_sent,
    whole_row,
)
from .transactions import Read, RowLock, Transaction, Write
from .watched import Watched, commits_each_statement, here

_NAMELESS: Final = ""
_MOST_VALUES: Final = 100  # rows of one statement that the audit examines


class Listeners:
    """Listeners for the events of engines, sessions and mapped objects, named like the events.

    Listeners for objects receive the object's state.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._guarded_begin = watched.guarded(self._begin_read)
        self._guarded_note = watched.guarded(self._note_locked)
        self._guarded_set = watched.guarded(self._note_set)
        self._guarded_acquire = watched.guarded(watched.acquire)
        self._sessions, self._reads = watched.sessions, watched.reads
        self._forget_read = self._reads.pop

    # Engines: statements as they are sent, and transactions of connections.

    def savepoint(self, word: str, connection: Connection, *_: object) -> None:
        """Note a SQLAlchemy savepoint.  Savepoints end in order, so their names do not matter."""
        self._note_savepoint(self._watched.transaction_of(connection), word, _NAMELESS)

    def _note_savepoint(self, transaction: Transaction, word: str, name: str) -> None:
        if word != "SAVEPOINT":
            transaction.end_savepoint(name, rolled_back=word == "ROLLBACK")
        stays = word == "ROLLBACK" and name != _NAMELESS  # named by a text
        if word == "SAVEPOINT" or stays:
            transaction.savepoints += ((name, self._watched.statements),)

    def before_cursor_execute(
        self,
        connection: Connection,
        _cursor: Any,
        text: str,
        _parameters: Any,
        context: Any,
        _many: bool,
    ) -> None:
        """Judge a statement by its text and its SQLAlchemy construct."""
        watched = self._watched
        watched.statements += 1
        user = watched.seen(connection).user
        transaction = watched.transaction_of(connection) if user is None else user.transaction
        if transaction.waiting is not None:
            watched.measure_idle(transaction)
        sent = facts_of(text, context)
        if sent.written:
            transaction.written |= sent.written
        if getattr(context, "isddl", False):
            transaction.changes_schema = True
        if sent.controls:
            self._note_control(connection, transaction, sent)
        if sent.asks or sent.is_select:
            reading = None if user is None else user.reading
            self._note_select(connection, transaction, sent, context, reading)
        elif sent.writes:
            transaction.has_written = True
            in_flush = user is not None and user.is_in_flush()
            if not in_flush:
                self._note_write(transaction, sent, context)
            if sent.own_read is not None:
                self._note_own_read(transaction, sent.own_read, context, in_flush=in_flush)

    def _note_control(self, connection: Connection, transaction: Transaction, sent: Sent) -> None:
        """Note a text that begins or ends a transaction or savepoint, sets its level, or locks more than rows."""
        if sent.locks_widely or sent.begins:
            self._watched.note_wide_lock(connection, sent)
        if sent.level:
            self._watched.note_level(connection, sent.level)
        if sent.ends:
            transaction.forget_locks()
        if sent.savepoint:
            self._note_savepoint(transaction, *sent.savepoint)

    def _note_select(
        self,
        connection: Connection,
        transaction: Transaction,
        sent: Sent,
        context: Any,
        reading: Read | None,
    ) -> None:
        if reading is not None:
            if reading.number:
                reading = None  # executed before: the session does not know this one
            else:
                reading.number, reading.claims = self._watched.statements, sent.limited
        if not sent.asks:
            places = places_of_program() if reading is None else reading.places
            parameters = parameters_of(context) if sent.conditions else []
            rules, number = self._watched.rules, self._watched.statements
            rules.lost_update.read_table(sent, places, number)
            rules.inserts.read_table(sent, places, number, parameters)
            return
        self._check_effect(connection, transaction, sent)
        place = here()
        transaction.first_lock = transaction.first_lock or place
        if reading is not None:
            reading.locked = True
            transaction.locking.append(reading)
        if reading is None or not reading.names_rows:
            self._note_rows_locked(transaction, sent, context, place)
        else:
            for table in {*sent.locked} - reading.tables:  # of a join, for example
                transaction.tables_locked.setdefault(table, reading.number)

    def _note_rows_locked(
        self, transaction: Transaction, sent: Sent, context: Any, place: Place
    ) -> None:
        """Record the row that a SELECT locks by key; without a key, record the tables."""
        number = self._watched.statements
        for condition in sent.conditions:
            for parameters in parameters_of(context):
                key = key_sent(condition.key(), parameters)
                if key is not None:
                    row = Row(entity_of_table(condition.table), key)
                    self._watched.acquire(transaction, row, RowLock(place, number))
                    return
        for table in sent.locked:
            transaction.tables_locked.setdefault(table, number)

    def _check_effect(self, connection: Connection, transaction: Transaction, sent: Sent) -> None:
        written = transaction.has_written and locks_database(connection)
        if (
            transaction.has_wide_lock
            or written
            or (transaction.protection.finds_conflicts and not sent.locks)
        ):
            return  # the transaction already has the lock that the SQL lacks
        database = connection.dialect.name
        if not sent.locks:
            reason = "the SQL that is sent takes no lock"
        elif commits_each_statement(connection):
            reason = "the connection commits each statement, which releases the lock"
        else:
            return
        self._watched.rules.effects.without_effect(transaction, sent, database, reason, here())

    def _note_write(self, transaction: Transaction, sent: Sent, context: Any) -> None:
        places = places_of_program()
        parameters = list(islice(parameters_of(context), _MOST_VALUES))
        if sent.update is not None:
            number = self._watched.statements
            self._watched.rules.inserts.read_table(sent, places, number, parameters)
            self._note_update(transaction, sent.update, parameters, places)
        if sent.insert is not None:
            names = dict(sent.inserts)
            if names:
                parameters = [
                    {key: one.get(name) for key, name in names.items()} for one in parameters
                ]
            self._note_insert(transaction, sent.insert, context, parameters, places, names)
        if sent.delete is not None:
            entity = entity_of_table(sent.delete.table)
            keys = (key_sent(sent.delete.key(), one) for one in parameters)
            transaction.deleted |= {Row(entity, key) for key in keys if key is not None}

    def _note_own_read(
        self, transaction: Transaction, own: OwnRead, context: Any, *, in_flush: bool
    ) -> None:
        """Pass to the rules an INSERT that reads its own table; for an object, with the line that adds it."""
        watched, table = self._watched, own.condition.table
        added = (
            places
            for of, places in list(watched.added.items())
            if (state := of()) is not None
            and state.mapper.local_table is table
            and any(isinstance(value, ClauseElement) for value in state.dict.values())
        )
        places = next(added, None) if in_flush else None
        for one in parameters_of(context)[:1] or [{}]:
            mapper, values = mapper_of_table(table), own.condition.values(one) or {}
            headers = [] if mapper is None else [*header_rows_of_values(mapper, values)]
            new = NewRow(table, one, headers, places or places_of_program())
            watched.rules.inserts.read_itself(transaction, new, own, watched.statements)

    def _note_insert(
        self,
        transaction: Transaction,
        table: Table,
        context: Any,
        parameters: list[Mapping[str, Any]],
        places: Places,
        names: Mapping[str, str],
    ) -> None:
        mapper = context.compiled and mapper_of_statement(context.compiled.statement)
        entity = entity_of_table(table)
        keys = tuple(column.key for column in table.primary_key)
        transaction.inserted_into |= {entity}
        for values in parameters:
            headers = [] if mapper is None else list(header_rows_of_values(mapper, values))
            key = key_sent(keys, values)
            if key is not None and Row(entity, key) in transaction.deleted:
                self._note_update(transaction, whole_row(table), [values], places)
            if mapper is not None:
                self._watched.rules.headers.inserted(transaction, entity, headers, places[0])
            new = NewRow(table, values, headers, places, names)
            self._watched.rules.inserts.inserted(transaction, new)

    def _note_update(
        self,
        transaction: Transaction,
        update: WriteSent,
        parameters: list[Mapping[str, Any]],
        places: Places,
    ) -> None:
        entity = entity_of_table(update.table)
        for one in parameters:
            key = key_sent(update.key, one)
            row = None if key is None else Row(entity, key)
            values = values_sent(update, one)
            self._watched.rules.lost_update.updated(transaction, update, values, row, places)
            if row is not None:
                self._note_saved(transaction, row, {value.column for value in values}, places)
                lock = RowLock(places[0], self._watched.statements, by_write=True)
                self._watched.acquire(transaction, row, lock)

    def _note_saved(
        self, transaction: Transaction, row: Row, columns: set[str], places: Places
    ) -> None:
        """Pass to the rules an object that is saved without a flush, such as by bulk_save_objects()."""
        for of, assigned in list(self._watched.assigned.items()):
            read, state = self._watched.reads.get(of), of()
            if (
                read is None
                or state is None
                or state.session_id is not None
                or row_of(state) != row
            ):
                continue
            attributes = {
                one.key for one in state.mapper.column_attrs if one.columns[0].key in columns
            }
            changed = {name: state.dict.get(name) for name in assigned.keys() & attributes}
            write = Write("update", row, state, state.mapper, places, assigned, read, changed, {})
            if changed:
                self._watched.rules.wrote(transaction, write)

    # Sessions: their transactions, and the SELECTs of objects.

    def after_begin(self, session: Session, _: SessionTransaction, connection: Connection) -> None:
        """Attribute the connection's statements to the session."""
        self._watched.use(connection, self._watched.session(session))

    def after_commit(self, session: Session) -> None:
        """Note that the outer transaction committed, and not only a savepoint."""
        if not session.in_nested_transaction():
            self._watched.session(session).committed = True

    def after_transaction_end(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            self._watched.end_session(session)

    def before_flush(self, session: Session, *_: object) -> None:
        """Note that the flush writes objects, not rows of bulk_update_mappings()."""
        self._watched.session(session).flush = ()

    def transient_to_pending(self, _: Session, instance: object) -> None:
        self._watched.added.put(instance_state(instance), places_of_program())

    def do_orm_execute(self, run: ORMExecuteState) -> Result[Any] | None:
        """Remember the reading line, and find the rows that a locking SELECT returns."""
        read = self._guarded_begin(run) if run.is_select else None
        if read is None or not read.locked or run.execution_options.get("yield_per"):
            return None
        result = run.invoke_statement()
        if hasattr(result, "iterator"):  # rows with objects, not columns
            self._guarded_note(run.session, read, buffer_rows(result))
        return result

    def _begin_read(self, run: ORMExecuteState) -> Read:
        seen = self._watched.session(run.session)
        statement: Any = getattr(run.statement, "element", run.statement)
        read = Read(places_of_program(), seen.transaction.number, statement)
        if asks_for_lock(statement):
            read.locked = read.names_rows = _names_rows(run)
            lock = for_update_of(statement) if hasattr(statement, "with_for_update") else None
            read.waits = lock is None or not (lock.nowait or lock.skip_locked)
            tables = (one for mapper in run.all_mappers for one in mapper.tables)
            read.tables = frozenset(plain_name(one) for one in tables if isinstance(one, Table))
        elif seen.transaction.first_lock is not None:
            seen.transaction.read_after_lock |= {entity_name(one) for one in run.all_mappers}
        seen.reading = read
        return read

    def _note_locked(self, session: Session, read: Read, rows: list[Any]) -> None:
        transaction = self._watched.session(session).transaction
        for row in rows:
            for value in row if isinstance(row, tuple) else (row,):
                state = inspect(value, raiseerr=False)
                if isinstance(state, InstanceState) and read.locks_rows_of(state.mapper):
                    self._note_kept(transaction, session, state, read)

    def _note_kept(
        self, transaction: Transaction, session: Session, state: InstanceState[Any], read: Read
    ) -> None:
        """Record that the object's row is locked, and that the object kept its values."""
        row, before = row_of(state), self._watched.reads.get(ref(state))
        if row is None:
            return
        kept = before is not None and before is not read
        refreshes = isinstance(session, LockingSession)  # sa_doclock's locks refresh the object
        if before is not None and kept and not refreshes and not transaction.protects(row, before):
            self._watched.rules.stale.kept_values(transaction, row, before, read)
        self._watched.acquire(transaction, row, read.lock)

    def lock_acquired(
        self, session: Session, document: DocumentKey | LockedName, lock: LockOptions, _: float
    ) -> None:
        """Note a LockingSession's lock, which its SQL might not show."""
        entity, key = document
        if entity is None or not is_row_lock(lock) or not isinstance(key, tuple):
            return
        row = Row(entity_of_class(entity), key)
        waits = not lock & (LockOptions.NoWait | LockOptions.SkipLocked)
        transaction = self._watched.session(session).transaction
        lock_taken = RowLock(here(), self._watched.statements, waits=waits, refreshes=True)
        self._watched.acquire(transaction, row, lock_taken)

    # Mapped objects: loaded, changed, written.

    def load(self, state: InstanceState[Any], context: Any) -> None:
        """Remember the SELECT that read an object."""
        seen = self._sessions.get(state.session_id)
        read = None if seen is None else seen.reading
        if seen is None or read is None or context is None:
            return
        self._reads[ref(state, self._forget_read)] = read
        if read.locked and state.key is not None and read.locks_rows_of(state.mapper):
            self._guarded_acquire(seen.transaction, row_of(state), read.lock)

    def refresh(self, state: InstanceState[Any], context: Any, attributes: Any) -> None:
        """Treat a full refresh as a load; after a partial refresh, record the refreshed attributes."""
        columns = state.dict.keys() & state.mapper.column_attrs.keys()
        columns -= {one.key for one in state.mapper.primary_key}
        if attributes is None or attributes >= columns:
            self.load(state, context)
            self._watched.refreshed.pop(ref(state), None)
            return
        seen = self._watched.of_object(state)
        if seen is not None and seen.reading is not None and context is not None:
            again = dict.fromkeys(attributes, seen.reading)
            known = self._watched.refreshed.get(ref(state), {})
            self._watched.refreshed.put(state, {**known, **again})

    def set(
        self, state: InstanceState[Any], value: Any, _old: Any, initiator: Any, **_key: Any
    ) -> Any:
        """Remember the line that gives a stored object a new value."""
        if state.key is not None:
            self._guarded_set(state, initiator.key)
        return value

    def _note_set(self, state: InstanceState[Any], name: str) -> None:
        known = self._watched.assigned.get(ref(state))
        if known is None:
            known = {}
            self._watched.assigned.put(state, known)
        known[name] = places_of_program()

    def written(
        self, kind: str, mapper: Mapper[Any], _: Connection, state: InstanceState[Any]
    ) -> None:
        """Pass to the rules an object that a flush wrote."""
        watched, of = self._watched, ref(state)
        assigned = watched.assigned.pop(of, {})
        added = watched.added.pop(of, None)
        seen, inserts = watched.of_object(state), kind == "insert"
        if seen is None:
            return
        transaction = seen.transaction
        row = (row_of(state) if kind == "delete" else None) or row_written(state)
        replaces = kind == "update" or (inserts and row in transaction.deleted)
        changed = dict(changed_attributes(state)) if replaces else {}
        if kind == "update" and not changed:
            return
        places = (added if inserts else None) or seen.lines_of_flush()
        read, refreshed = watched.reads.get(of), watched.refreshed.get(of, {})
        write = Write(kind, row, state, mapper, places, assigned, read, changed, refreshed)
        watched.rules.wrote(transaction, write)
        if transaction.has_room():
            (transaction.inserted if inserts else transaction.updated).add(row)
            if kind == "delete":
                transaction.deleted.add(row)
        if not inserts:  # an UPDATE or DELETE itself locks the row
            lock = RowLock(places[0], watched.statements, by_write=True)
            watched.acquire(transaction, row, lock)


def _names_rows(run: ORMExecuteState) -> bool:
    if not isinstance(run.statement, Select):
        return bool(run.all_mappers)
    return any(one["expr"] is one.get("entity") for one in run.statement.column_descriptions)
