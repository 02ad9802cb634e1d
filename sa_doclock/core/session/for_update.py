"""SQLAlchemy's own ``with_for_update()``, in a LockingSession: a lock that is real and recorded.

The statement, its autoflush and isolation level stay SQLAlchemy's.  Where its SQL would carry no
lock, the session makes it real: by the transaction, or by a table hint.  What it returns is fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Alias, Connection, Result, Select, Subquery, Table, inspect
from sqlalchemy.orm import InstanceState, Mapper, Session

from ...dialects import product_of, strategy_for
from ...dialects.base import READ_COMMITTED, LockStrategy
from ...errors import DocLockError, LockNotSupported, UnsavedChanges
from ...options import LockOptions, is_row_lock
from ..documents import (
    document_key,
    from_clauses_within,
    header_table,
    root_of,
    tables_of,
    tables_within,
)
from ..instrumentation import warn_of_cluster
from ..loading import LoadedHeaders, load_again
from ..lock_info import DocumentKey, LockedName, public_key
from ..locking import LockContext, expire_documents, expire_parts
from ..sqlalchemy_internals import (
    autoflush,
    buffer_rows,
    for_update_of,
    for_update_tables,
)
from ..statements import add_hints, add_suffixes
from ..transaction import Ledger, LockRequest, add_document, make_plan

Run = Callable[..., Result[Any]]

_NO_TABLE = (
    "FOR UPDATE locks rows of the tables that a SELECT reads by itself, and none of a subquery or "
    "CTE; select from the table, or from the mapped class"
)


def execute_for_update(
    session: Session,
    context: LockContext,
    statement: Select[Any],
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
    request = _request_of(context, statement, lock, entities, bind_arguments)
    options = {**statement.get_execution_options(), **execution_options}
    opens = not session.in_transaction()
    clock = context.now
    started = clock()
    reporting: AbstractContextManager[list[DocumentKey | LockedName]] = nullcontext([])
    if request.entity is not None:
        reporting = context.instrumentation.reporting_call(request.entity, lock, clock)
    with reporting as granted:
        adopted = _Adopted(session, context, request, entities, options, opens=opens)
        result = adopted.run(statement, run)
        collisions = adopted.finish()
        if adopted.headers:
            refused = {state for state, _ in collisions}
            headers = [
                one for one in adopted.headers if inspect(one, raiseerr=False) not in refused
            ]
            granted.extend(_adopt(context.ledger, headers, lock))
            _report_granted(context, granted, lock, clock() - started, opens=opens)
        if collisions:
            raise _unsaved(*collisions[0], lock, product_of(adopted.bind.dialect))
    return result


class _Adopted:
    """One statement of the program while it is executed.

    :ivar headers: the objects of the locked classes among its rows.
    """

    def __init__(
        self,
        session: Session,
        context: LockContext,
        request: LockRequest,
        entities: Sequence[Any],
        options: Mapping[str, Any],
        *,
        opens: bool,
    ) -> None:
        self._session = session
        self._context = context
        self._request = request
        self._entities = entities
        self._options = options
        self._opens = opens
        self.bind = session.get_bind(**request.bind_arguments)
        roots = {root_of(inspect(entity).mapper) for entity in entities}
        self._loaded = LoadedHeaders(
            session, context.loaded_documents(), context.ledger, roots, options
        )
        self.headers: list[Any] = []

    def run(self, statement: Select[Any], run: Run) -> Result[Any]:
        """Execute it, its lock made real, and read again what the session had of its rows."""
        context, request, bind = self._context, self._request, self.bind
        strategy = strategy_for(bind)
        context.adopting = request
        try:
            statement = _made_real(context, statement, request, strategy, self._entities, bind)
            _note_adopted(context, request.lock, bind)
            if self._entities:  # SQLAlchemy flushes before a statement of the ORM alone
                autoflush(self._session, self._options)
            context.adopted_headers = self._loaded
            result = self._run(self._loaded.prepare(statement), run, strategy)
            if self.headers:
                self._check_held(strategy)
        except BaseException as error:
            self._loaded.put_back()
            if isinstance(error, DocLockError):
                add_document(error, request.entity, None, request.lock, product_of(bind.dialect))
            raise
        finally:
            context.adopting = context.adopted_headers = None
        return result

    def _run(self, statement: Select[Any], run: Run, strategy: LockStrategy) -> Result[Any]:
        if self._entities:
            result = run(statement)
        else:
            result = _run_on(self._session, self.bind, statement, run)
        connection = Session.connection(self._session, {"bind": self.bind})
        if _is_kept(strategy, connection, self._options):
            self.headers = _headers(statement, result, self._entities)
        return result

    def _check_held(self, strategy: LockStrategy) -> None:
        connection = Session.connection(self._session, {"bind": self.bind})
        lent = isinstance(self.bind, Connection)
        _check_held(
            self._context,
            strategy,
            self._request.lock,
            self._entities,
            connection,
            lent=lent,
            opens=self._opens,
        )

    def finish(self) -> Sequence[tuple[InstanceState[Any], str]]:
        """Give back what was not read again, and expire what is older than the lock.

        :returns: the attributes with a pending change whose column another has changed meanwhile.
        """
        loaded, context = self._loaded, self._context
        if _is_streamed(self._options):
            loaded.keep_expired()
            for root in loaded.roots:
                load_again(self._session, expire_documents(context, root, None))
        collisions = loaded.finish(self.headers)
        _expire_parts(context, loaded.read_again)
        return collisions


def _expire_parts(context: LockContext, headers: Iterable[InstanceState[Any]]) -> None:
    """Expire the parts of headers that the session had before they were locked."""
    by_root: dict[Mapper[Any], list[Any]] = {}
    for state in headers:
        by_root.setdefault(root_of(state.mapper), []).append(state.identity)
    for root, identities in by_root.items():
        load_again(context.session(), expire_parts(context, root, identities))


def _unsaved(
    state: InstanceState[Any], name: str, lock: LockOptions, database: str
) -> UnsavedChanges:
    """Return the error of a change that would overwrite another's, which stays pending.

    The row is locked, and is not in ``held_locks``.
    """
    error = UnsavedChanges(
        f"{name!r} has a pending change from before the lock, and somebody else has changed it in "
        "the row meanwhile; lock first, then change, or flush() before"
    )
    identity = state.identity or ()
    add_document(error, state.class_, public_key(identity), lock, database)
    return error


def _request_of(
    context: LockContext,
    statement: Select[Any],
    lock: LockOptions,
    entities: Sequence[Any],
    bind_arguments: Mapping[str, Any],
) -> LockRequest:
    """Return the lock as a request; without entities it is of rows of tables, and of no document."""
    mapper: Mapper[Any] | None = None
    arguments = {"clause": statement, **bind_arguments}
    if entities:
        mapper = inspect(entities[0]).mapper
        arguments = {"mapper": mapper, **arguments}
    entity = None if mapper is None else mapper.class_
    request = LockRequest(entity, None, lock, mapper=mapper, bind_arguments=arguments)
    for route in context.parts.route:
        request = route(request)
    return request


def _run_on(session: Session, bind: Any, statement: Select[Any], run: Run) -> Result[Any]:
    """Run the statement on the connection that is fit for it, whatever ``get_bind()`` answers next."""
    connection = Session.connection(session, {"bind": bind})
    return run(statement, bind_arguments={"bind": connection})


def _report_granted(
    context: LockContext,
    granted: Sequence[DocumentKey | LockedName],
    lock: LockOptions,
    waited: float,
    *,
    opens: bool,
) -> None:
    try:
        context.report_granted(granted, lock, waited)
    except BaseException:  # a listener's, as an error of the call
        if opens:
            context.roll_back_quietly()
        raise


def _adopt(
    ledger: Ledger, headers: Iterable[Any], lock: LockOptions
) -> Sequence[DocumentKey | LockedName]:
    """Record the lock of these objects; return the documents that were not held as strongly."""
    of_call, ledger.new = ledger.new, []  # of a call whose listener runs this statement
    try:
        for instance in headers:
            state = inspect(instance, raiseerr=False)  # None: of an outer join
            if state is not None and state.identity is not None:
                ledger.adopt(document_key(state.mapper, state.identity), lock)
        return ledger.new
    finally:
        ledger.new = of_call


def _locked_entities(statement: Select[Any]) -> list[Any]:
    """Return the classes and aliases whose header rows the statement locks.

    None for ``FOR KEY SHARE``, which protects no document.
    """
    if _is_key_share(statement):
        return []
    of = {*from_clauses_within(for_update_tables(statement))}
    selected = (described.get("entity") for described in statement.column_descriptions)
    entities = {id(entity): entity for entity in selected if entity is not None}
    return [one for one in entities.values() if not of or _is_named(one, of)]


def _is_named(entity: Any, of: AbstractSet[Any]) -> bool:
    """Return whether ``with_for_update(of=)`` names the header's table, or its subquery."""
    if of.isdisjoint(tables_of(entity)):
        return inspect(entity).selectable in of
    return header_table(entity) in of


def _is_key_share(statement: Select[Any]) -> bool:
    found = for_update_of(statement)
    return found is not None and found.read and found.key_share


def _made_real(
    context: LockContext,
    statement: Select[Any],
    request: LockRequest,
    strategy: LockStrategy,
    entities: Sequence[Any],
    bind: Any,
) -> Select[Any]:
    """Return the statement with the lock in it, or have the lock in the transaction."""
    if strategy.compatible is not None:
        strategy.compatible.check_lock(request.lock)
    row_lock = strategy.row_lock(request.lock, READ_COMMITTED)
    warn_of_cluster(strategy, row_lock, named=False)
    if is_row_lock(row_lock):
        tables = _locked_tables(statement, entities, strategy)
        statement = _locking(statement, tables, request.lock, row_lock, strategy)
    else:
        _take_in_transaction(context, request, strategy, bind)
    if context.parts.bound and request.mapper is not None:
        Session.connection(context.session(), {"bind": bind})  # begins what ends the pin
        for bound in context.parts.bound:
            bound(request.mapper, bind)
    return statement


def _locked_tables(
    statement: Select[Any], entities: Sequence[Any], strategy: LockStrategy
) -> list[Table | Alias]:
    """Return the tables whose rows the SQL locks: those of the headers, or else all that it reads.

    :raises LockNotSupported: it reads subqueries or CTEs alone, whose rows it does not lock.
    """

    def is_locked(one: Any) -> bool:
        return strategy.locks_subqueries and isinstance(one, Subquery)

    if entities:
        return [header_table(one) for one in entities if not is_locked(inspect(one).selectable)]
    froms = [*from_clauses_within(for_update_tables(statement) or statement.get_final_froms())]
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
    if row_lock in strategy.suffixes:
        strategy.check_support(lock)
        return add_suffixes(statement, row_lock)
    if strategy.hints:
        strategy.check_support(lock)
        return add_hints(statement, tables, row_lock)
    return statement


def _take_in_transaction(
    context: LockContext, request: LockRequest, strategy: LockStrategy, bind: Any
) -> None:
    """Take the lock that is the transaction's, and not the statement's."""
    opens, mapper = not context.session().in_transaction(), request.mapper
    if mapper is not None and not isinstance(root_of(mapper).local_table, Table):
        mapper = None
    try:
        plan = make_plan(mapper, request.lock, strategy)
        seconds = 0.0 if LockOptions.NoWait in request.lock else None
        context.connections.prepare(bind, strategy, plan, seconds, upgrades=True)
    except BaseException:
        if opens:
            context.roll_back_quietly()
        raise


def _note_adopted(context: LockContext, lock: LockOptions, bind: Any) -> None:
    """Tell the parts of the lock, before its statement is sent."""
    if context.parts.before_adopted:
        connection = Session.connection(context.session(), {"bind": bind})
        joined = context.connections.find(connection)
        assert joined is not None
        for before_adopted in context.parts.before_adopted:
            before_adopted(joined, lock)


def _is_kept(strategy: LockStrategy, connection: Connection, options: Mapping[str, Any]) -> bool:
    """Return whether the lock outlives its statement, as it does not under AUTOCOMMIT.

    False too where the rows are streamed, and are locked one after the other.
    """
    if _is_streamed(options):
        return False
    try:
        strategy.check_autocommit(connection)
    except LockNotSupported:
        return False
    return True


def _is_streamed(options: Mapping[str, Any]) -> bool:
    return bool(options.get("yield_per") or options.get("stream_results"))


def _check_held(
    context: LockContext,
    strategy: LockStrategy,
    lock: LockOptions,
    entities: Sequence[Any],
    connection: Connection,
    *,
    lent: bool,
    opens: bool,
) -> None:
    """Check what was granted, and have the transaction followed from now on.

    It comes after the statement: under REPEATABLE READ the snapshot of what is read next must not
    be older than the lock.

    :param lent: the session was made on this Connection, which the program has in hand.
    :param opens: the statement has opened the transaction, which ends with an error.
    :raises LockNotSupported: rows of this table cannot be locked.
    :raises LockMisuse: the lock was granted in no transaction.
    """
    joined = context.connections.find(connection)
    assert joined is not None
    try:
        if is_row_lock(strategy.row_lock(lock, READ_COMMITTED)):
            for table in (root_of(inspect(entity).mapper).local_table for entity in entities):
                if isinstance(table, Table):
                    strategy.check_adopted(connection, lock, table)
        if lent:
            context.connections.watch(joined, lent=True)
        joined.note_lock()
    except DocLockError:
        if opens:
            context.roll_back_quietly()
        raise


def _headers(statement: Select[Any], result: Result[Any], entities: Sequence[Any]) -> list[Any]:
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
