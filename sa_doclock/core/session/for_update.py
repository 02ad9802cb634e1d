"""SQLAlchemy's own ``with_for_update()``, in a LockingSession: a lock that is real and recorded.

The statement, its autoflush and isolation level stay SQLAlchemy's.  Where its SQL would carry no
lock, the session makes it real: by the transaction, or by a table hint.  What it returns is fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from sqlalchemy import Alias, Connection, Engine, Result, Select, Subquery, Table, inspect
from sqlalchemy.orm import FromStatement, InstanceState, Mapper, Session

from ...dialects.base import READ_COMMITTED, LockStrategy
from ...errors import DeadlockDetected, DocLockError, LockNotSupported, UnsavedChanges
from ...options import LockOptions, is_row_lock
from ..documents import (
    document_key,
    from_clauses_within,
    header_table,
    root_of,
    tables_of,
    tables_within,
)
from ..loading import LoadedHeaders, load_again
from ..lock_info import public_key
from ..locking import LockTarget, acquire, expire_documents, expire_parts
from ..sqlalchemy_internals import (
    autoflush,
    buffer_rows,
    for_update_of,
    for_update_tables,
)
from ..statements import add_hints, add_suffixes, inner_select, with_inner_select
from ..transaction import (
    LockCall,
    LockContext,
    LockPlan,
    LockRequest,
    TransactionConnection,
    add_document,
    database_name,
    make_plan,
)
from .returned_keys import (
    KeyPlaces,
    ReturnedKey,
    expire_by_keys,
    keys_of_entities,
    keys_of_tables,
    locked_froms,
    returned_keys,
)

Run = Callable[..., Result[Any]]
Adopted = Select[Any] | FromStatement[Any]

_NO_TABLE = (
    "FOR UPDATE locks rows of the tables that a SELECT reads by itself, and none of a subquery or "
    "CTE; select from the table, or from the mapped class"
)


def execute_for_update(
    context: LockContext,
    statement: Adopted,
    lock: LockOptions,
    run: Run,
    execution_options: Mapping[str, Any],
    bind_arguments: Mapping[str, Any],
) -> Result[Any]:
    """Run the statement, its lock made real, and record the headers whose rows it returns.

    :raises LockNotSupported: this database has no such lock, or not of such a statement.
    :raises UnsavedChanges: another has changed a column that has a pending change here.
    """
    entities = _locked_entities(statement)
    request = _request_of(statement, lock, entities, bind_arguments)
    options = {**statement.get_execution_options(), **execution_options}
    return acquire(AdoptedRows(context, request, statement, entities, run, options))


class AdoptedRows(LockTarget[Result[Any]]):
    """The rows that the program's own statement locks.

    :param entities: the locked classes and aliases; none: rows of tables.
    :param run: executes the statement as the program has asked for it.
    :param options: the execution options of both.
    """

    limits_itself = True  # the wait is the program's
    lasts = False
    _executed = False

    def __init__(
        self,
        context: LockContext,
        request: LockRequest,
        statement: Adopted,
        entities: Sequence[Any],
        run: Run,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(context, request)
        self._statement, self._entities = statement, entities
        self._run, self._options = run, options
        self._headers: list[Any] = []
        self._selected = _selected_keys(statement, entities)
        self._keys: Sequence[ReturnedKey] = ()
        self._tables: Sequence[Table | Alias] = ()
        self._roots = {root_of(inspect(entity).mapper) for entity in entities}
        self._loaded = LoadedHeaders(
            self.session, context.loaded, context.ledger, self._roots, options
        )

    def check(self) -> None:
        """See :class:`LockTarget`: the order of locking is that of all locks."""
        if is_row_lock(self.request.lock):
            for root in {*self._roots, *(one.root for one in self._selected)}:
                self.context.ledger.check_order(root)

    def prepare(
        self, bind: Engine | Connection, strategy: LockStrategy, request: LockRequest
    ) -> tuple[TransactionConnection, LockPlan]:
        """Have the lock in the statement; else in the transaction, whose level stays as it is."""
        lock = request.lock
        if strategy.compatible is not None:
            strategy.compatible.check_lock(lock)
        row_lock = strategy.statements.row_lock(lock, READ_COMMITTED)
        if not is_row_lock(row_lock):
            return self._take_in_transaction(bind, strategy)
        select = inner_select(self._statement)
        self._tables = _locked_tables(select, self._entities, strategy)
        locking = _locking(select, self._tables, lock, row_lock, strategy)
        self._statement = with_inner_select(self._statement, locking)
        joined = self.context.connections.find(Session.connection(self.session, {"bind": bind}))
        assert joined is not None
        return joined, LockPlan(lock, None, row_lock, whole=False, table=None)

    def _take_in_transaction(
        self, bind: Engine | Connection, strategy: LockStrategy
    ) -> tuple[TransactionConnection, LockPlan]:
        mapper, lock = self.mapper, self.request.lock
        if mapper is not None and not isinstance(root_of(mapper).local_table, Table):
            mapper = None
        plan = make_plan(mapper, lock, strategy)
        seconds = 0.0 if LockOptions.NoWait in lock else None
        connections = self.context.connections
        return connections.prepare(bind, strategy, plan, seconds, upgrades=True), plan

    def send(
        self, connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> Result[Any]:
        """Execute the statement, and read again what the session had of its rows."""
        self._executed = True
        if self._entities:  # SQLAlchemy flushes before a statement of the ORM alone
            autoflush(self.session, self._options)
        with self.context.loaded.calling_before_flush(self._loaded.before_flush):
            result = self._execute(self._loaded.prepare(self._statement), connection)
        if _is_kept(connection, self._options):
            self._headers = _headers(self._statement, result, self._entities)
            self._keys = returned_keys(result, self._selected)
            self.lasts = bool(self._headers or self._keys)
            if (self.lasts or not self._entities) and is_row_lock(plan.row_lock):
                try:
                    self._check_tables(connection)
                except DeadlockDetected as error:
                    context = self.context
                    context.failure.note_ended_at_question(error, context.calls.current)
                    raise
        return result

    def _execute(self, statement: Adopted, connection: TransactionConnection) -> Result[Any]:
        if self._entities:
            return self._run(statement)
        # On the connection that is fit for it, whatever get_bind() answers next.
        return self._run(statement, bind_arguments={"bind": connection.connection})

    def _check_tables(self, connection: TransactionConnection) -> None:
        """Check that rows of these tables can be locked.

        It comes after the statement: under REPEATABLE READ the snapshot of what is read next must
        not be older than the lock.

        :raises LockNotSupported: rows of one of them cannot be locked.
        """
        lock = self.request.lock
        tables = [root.local_table for root in self._roots] if self._entities else self._tables
        for one in tables:
            table = one.element if isinstance(one, Alias) else one
            if isinstance(table, Table):
                connection.strategy.check_adopted(connection.connection, lock, table)

    def record(self, found: Result[Any], request: LockRequest) -> Result[Any]:
        """Give back what was not read again, expire what is older than the lock, and record."""
        collisions = self._finish()
        refused = {state for state, _ in collisions}
        for state in (inspect(one, raiseerr=False) for one in self._headers):
            known = state is not None and state.identity is not None  # None: of an outer join
            if known and state not in refused:
                document = document_key(state.mapper, state.identity)
                self.context.ledger.adopt(document, request.lock)
        self._record_keys()
        if collisions and self.context.calls.current is not None:
            self.context.calls.current.unsaved = self._unsaved(*collisions[0])
        return found

    def _record_keys(self) -> None:
        expire_by_keys(self.context, self._keys)
        for root, identity in self._keys:
            self.context.ledger.adopt(document_key(root, identity), self.request.lock)

    def _finish(self) -> Sequence[tuple[InstanceState[Any], str]]:
        """Return the attributes with a pending change whose column another has changed meanwhile."""
        loaded, context = self._loaded, self.context
        if _is_streamed(self._options):
            loaded.keep_expired()
            for root in loaded.roots:
                load_again(self.session, expire_documents(context, root, None))
        collisions = loaded.finish(self._headers)
        _expire_parts(context, loaded.read_again)
        return collisions

    def _unsaved(self, state: InstanceState[Any], name: str) -> UnsavedChanges:
        """Return the error of a change that would overwrite another's, which stays pending.

        The row is locked, and is not in ``held_locks``.
        """
        error = UnsavedChanges(
            f"{name!r} has a pending change from before the lock, and somebody else has changed it in "
            "the row meanwhile; lock first, then change, or flush() before"
        )
        identity, request = state.identity or (), self.request
        database = database_name(self.session, request.bind_arguments)
        add_document(error, state.class_, public_key(identity), request.lock, database)
        return error

    def undo(self, call: LockCall, error: BaseException) -> None:
        """Give the objects back what they had; end a transaction that was opened for nothing.

        What the program's own statement has met is left to the program.
        """
        self._loaded.put_back()
        refused = isinstance(error, DocLockError) and error is not call.met
        if call.opens and (refused or not self._executed):
            self.context.roll_back_quietly()


def _expire_parts(context: LockContext, headers: Iterable[InstanceState[Any]]) -> None:
    """Expire the parts of headers that the session had before they were locked."""
    by_root: dict[Mapper[Any], list[Any]] = {}
    for state in headers:
        by_root.setdefault(root_of(state.mapper), []).append(state.identity)
    for root, identities in by_root.items():
        load_again(context.session(), expire_parts(context, root, identities))


def _request_of(
    statement: Adopted,
    lock: LockOptions,
    entities: Sequence[Any],
    bind_arguments: Mapping[str, Any],
) -> LockRequest:
    """Return the lock as a request; without entities it is of rows of tables, and of no document."""
    arguments = {"clause": statement, **bind_arguments}
    if not entities:
        return LockRequest(None, None, lock, bind_arguments=arguments, adopted=True)
    mapper: Mapper[Any] = inspect(entities[0]).mapper
    arguments = {"mapper": mapper, **arguments}
    return LockRequest(
        mapper.class_, None, lock, mapper=mapper, bind_arguments=arguments, adopted=True
    )


def _locked_entities(statement: Adopted) -> list[Any]:
    """Return the classes and aliases whose header rows the statement locks.

    None for ``FOR KEY SHARE``, which protects no document.
    """
    select = inner_select(statement)
    if _is_key_share(select):
        return []
    of = _froms_meant(statement, select)
    selected = (described.get("entity") for described in statement.column_descriptions)
    entities = {id(entity): entity for entity in selected if entity is not None}
    return [one for one in entities.values() if not of or _is_named(one, of)]


def _froms_meant(statement: Adopted, select: Select[Any]) -> AbstractSet[Any]:
    """Return the FROM clauses of which the classes must be; empty: all classes are locked."""
    of = for_update_tables(select)
    if select is not statement and not of:  # it may load a class by the columns of another
        of = [*select.get_final_froms()]
    return {*from_clauses_within(of)}


def _is_named(entity: Any, of: AbstractSet[Any]) -> bool:
    """Return whether ``with_for_update(of=)`` names the header's table, or its subquery."""
    if of.isdisjoint(tables_of(entity)):
        return inspect(entity).selectable in of
    return header_table(entity) in of


def _selected_keys(statement: Adopted, entities: Sequence[Any]) -> Sequence[KeyPlaces]:
    """Return the keys of locked headers that are whole among the selected columns."""
    found = [*keys_of_entities(statement, entities)]
    if isinstance(statement, Select) and not _is_key_share(statement):
        found += keys_of_tables(statement)
    return found


def _is_key_share(statement: Select[Any]) -> bool:
    found = for_update_of(statement)
    return found is not None and found.read and found.key_share


def _locked_tables(
    statement: Select[Any], entities: Sequence[Any], strategy: LockStrategy
) -> list[Table | Alias]:
    """Return the tables whose rows the SQL locks: those of the headers, or else all that it reads.

    :raises LockNotSupported: it reads subqueries or CTEs alone, whose rows it does not lock.
    """

    def is_locked(one: Any) -> bool:
        return strategy.statements.locks_subqueries and isinstance(one, Subquery)

    if entities:
        return [header_table(one) for one in entities if not is_locked(inspect(one).selectable)]
    froms = [*from_clauses_within(locked_froms(statement))]
    tables = [*tables_within(froms)]
    if not tables and not any(map(is_locked, froms)):
        raise LockNotSupported(_NO_TABLE)
    return tables


def _locking(
    statement: Select[Any],
    tables: Iterable[Table | Alias],
    lock: LockOptions,
    row_lock: LockOptions,
    strategy: LockStrategy,
) -> Select[Any]:
    """Return the statement with what its ``with_for_update()`` does not write on this database."""
    if row_lock in strategy.statements.suffixes:
        strategy.check_support(lock)
        return add_suffixes(statement, row_lock)
    if strategy.statements.hints:
        strategy.check_support(lock)
        return add_hints(statement, tables, row_lock)
    return statement


def _is_kept(one: TransactionConnection, options: Mapping[str, Any]) -> bool:
    """Return whether the lock outlives its statement, as it does not under AUTOCOMMIT.

    False too where the rows are streamed, and are locked one after the other.
    """
    if _is_streamed(options):
        return False
    try:
        one.strategy.check_autocommit(one.connection)
    except LockNotSupported:
        return False
    return True


def _is_streamed(options: Mapping[str, Any]) -> bool:
    return bool(options.get("yield_per") or options.get("stream_results"))


def _headers(statement: Adopted, result: Result[Any], entities: Sequence[Any]) -> list[Any]:
    """Return the objects of the locked classes among the rows, which stay in the result."""
    locked = {id(entity) for entity in entities}
    positions = [
        position
        for position, one in enumerate(statement.column_descriptions)
        if one["expr"] is one.get("entity") and id(one["expr"]) in locked
    ]
    found: list[Any] = []
    for row in buffer_rows(result) if positions else ():
        objects = row if isinstance(row, tuple) else (row,)
        found.extend(map(objects.__getitem__, positions))
    return found
