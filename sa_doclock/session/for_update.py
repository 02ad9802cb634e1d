"""SQLAlchemy's own ``with_for_update()``, in a LockingSession: a lock that is real and recorded.

The statement, its autoflush, isolation level and refresh rules stay SQLAlchemy's.  Where its SQL
would carry no lock, the session makes it real: by the transaction, or by a table hint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Result, Select, Table, inspect
from sqlalchemy.orm import Mapper, Session

from ..dialects import product_of, strategy_for
from ..dialects.base import READ_COMMITTED, LockStrategy
from ..documents import document_key, header_table, root_of, tables_within
from ..errors import DocLockError, LockNotSupported
from ..lock_info import DocumentKey, LockedName
from ..locking import LockContext
from ..monitoring import warn_of_cluster
from ..options import LockOptions, is_row_lock
from ..sqlalchemy_internals import ForUpdate, buffer_rows, for_update_of, for_update_tables
from ..statements import add_hints, add_suffixes
from ..transaction import Ledger, LockRequest, add_document, make_plan

Run = Callable[[Select[Any]], Result[Any]]


def lock_of_for_update(statement: Select[Any]) -> LockOptions | None:
    """Return the lock that the statement's ``with_for_update()`` is.

    None where it has none, and for ``FOR KEY SHARE``, which protects no document.
    """
    found = for_update_of(statement)
    if found is None or (found.read and found.key_share):
        return None
    lock = LockOptions.SharedRead if found.read else LockOptions.ForUpdate
    return lock | _modifiers(found)


def _modifiers(found: ForUpdate) -> LockOptions:
    return (
        (LockOptions.NoKey if found.key_share else LockOptions.None_)
        | (LockOptions.NoWait if found.nowait else LockOptions.None_)
        | (LockOptions.SkipLocked if found.skip_locked else LockOptions.None_)
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
    """
    entities = _locked_entities(statement)
    if not entities:  # a select of tables
        return run(statement)
    mapper: Mapper[Any] = inspect(entities[0]).mapper
    arguments = {"mapper": mapper, "clause": statement, **bind_arguments}
    request = LockRequest(mapper.class_, None, lock, mapper=mapper, bind_arguments=arguments)
    for route in context.parts.route:
        request = route(request)
    bind = session.get_bind(**request.bind_arguments)
    strategy = strategy_for(bind)
    opens = not session.in_transaction()

    clock = context.now
    started = clock()
    with context.instrumentation.reporting_call(mapper.class_, lock, clock) as granted:
        context.adopting = request
        try:
            statement = _made_real(context, statement, lock, strategy, entities, bind)
            _note_adopted(context, lock, bind)
            result = run(statement)
            connection = Session.connection(session, {"bind": bind})
            options = {**statement.get_execution_options(), **execution_options}
            kept = _is_kept(strategy, connection, options)
            headers = _headers(statement, result, entities) if kept else []
            if headers:
                lent = isinstance(bind, Connection)
                _check_held(context, strategy, lock, entities, connection, lent=lent, opens=opens)
        except DocLockError as error:
            add_document(error, mapper.class_, None, lock, product_of(bind.dialect))
            raise
        finally:
            context.adopting = None
        if kept:
            granted.extend(_adopt(context.ledger, headers, lock))
            _report_granted(context, granted, lock, clock() - started, opens=opens)
    return result


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
    """Return the classes and aliases whose header rows the statement locks."""
    of = set(tables_within(for_update_tables(statement)))
    selected = (described["entity"] for described in statement.column_descriptions)
    entities = {id(entity): entity for entity in selected if entity is not None}
    return [one for one in entities.values() if not of or header_table(one) in of]


def _made_real(
    context: LockContext,
    statement: Select[Any],
    lock: LockOptions,
    strategy: LockStrategy,
    entities: Sequence[Any],
    bind: Any,
) -> Select[Any]:
    if strategy.compatible is not None:
        strategy.compatible.check_lock(lock)
    row_lock, mapper = strategy.row_lock(lock, READ_COMMITTED), inspect(entities[0]).mapper
    warn_of_cluster(strategy, row_lock, named=False)
    if not is_row_lock(row_lock):  # the lock is the transaction's
        opens = not context.session().in_transaction()
        seconds = 0.0 if LockOptions.NoWait in lock else None
        try:
            plan = make_plan(mapper, lock, strategy)
            context.connections.prepare(bind, strategy, plan, seconds)
        except BaseException:
            if opens:
                context.roll_back_quietly()
            raise
    elif row_lock in strategy.suffixes:
        strategy.check_support(lock)
        statement = add_suffixes(statement, row_lock)
    elif row_lock in strategy.hints:
        strategy.check_support(lock)
        statement = add_hints(statement, map(header_table, entities), row_lock)
    if context.parts.bound:
        Session.connection(context.session(), {"bind": bind})  # begins what ends the pin
        for bound in context.parts.bound:
            bound(mapper, bind)
    return statement


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
    if options.get("yield_per") or options.get("stream_results"):
        return False
    try:
        strategy.check_autocommit(connection)
    except LockNotSupported:
        return False
    return True


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
        if one["expr"] is one["entity"] and id(one["entity"]) in locked
    ]
    found: list[Any] = []
    for row in buffer_rows(result) if positions else ():
        objects = row if isinstance(row, tuple) else (row,)
        found.extend(map(objects.__getitem__, positions))
    return found
