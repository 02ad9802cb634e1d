"""The private names of SQLAlchemy that this library reads, all except those of the guard in this one file.

SQLAlchemy has no public way to read a Select's DISTINCT, GROUP BY, lock or loader options, a type's
``with_variant()`` types, or the objects of a session or a connection pool that the functions at the
end of this file return.  tests/unit/test_sqlalchemy_internals*.py fail when one of the names
disappears.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from operator import attrgetter, is_
from threading import Lock
from typing import Any, NamedTuple, NoReturn, TypeVar
from weakref import ReferenceType, ref

from sqlalchemy import (
    CompoundSelect,
    Connection,
    CursorResult,
    Pool,
    QueuePool,
    Result,
    Select,
    TextClause,
    create_engine,
    event,
)
from sqlalchemy.engine import ExecutionContext
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.orm import InstanceState, Mapper, ORMExecuteState, Session, SessionTransaction
from sqlalchemy.orm.mapper import _all_registries
from sqlalchemy.orm.session import SessionTransactionState, _sessions
from sqlalchemy.orm.state_changes import _StateChangeStates
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.pool.base import ResetStyle
from sqlalchemy.sql.dml import ValuesBase
from sqlalchemy.types import TypeEngine
from sqlalchemy.util import immutabledict

S = TypeVar("S", bound=Select)  # type: ignore[type-arg]  # see statements/with_lock.py

_HINT_COMMENT = r"(?s)\s*/\*\+(.*)\*/\s*"
_FIRST_LEVEL = 3  # entity, relationship, entity


def is_distinct(statement: Select[Any]) -> bool:
    """Return whether ``distinct()`` was called."""
    return bool(statement._distinct)


def is_grouped(statement: Select[Any]) -> bool:
    """Return whether ``group_by()`` or ``having()`` was called."""
    return bool(statement._group_by_clauses or statement._having_criteria)


def without_options(statement: S, ours: Collection[Any]) -> S:
    """Return the same SELECT without our loader options that collide with others."""
    theirs = [option for option in statement._with_options if option not in ours]
    chosen = {relationship for relationship, _ in loads_of(theirs)}
    kept = (
        option
        for option in statement._with_options
        if option not in ours or chosen.isdisjoint(r for r, _ in loads_of([option]))
    )
    return with_options(statement, kept)


def options_of(statement: Select[Any]) -> tuple[Any, ...]:
    """Return the loader options and criteria of the statement."""
    return tuple(statement._with_options)


def loads_of(options: Iterable[Any]) -> Iterator[tuple[Any, str | None]]:
    """Yield the relationships of the selected entities themselves, with their loader strategy.

    A relationship is its property in the mapping, the same for a class and its subclasses; ``*``
    stands for all, and the strategy "contained" for contains_eager().
    """
    for option in options:
        if hasattr(option, "context"):
            for element in option.context:
                yield from _load_of(element)
        else:  # joinedload("*"), or with_loader_criteria(), which has no strategy
            strategy = dict(getattr(option, "strategy", None) or ())
            if "lazy" in strategy:
                yield "*", strategy["lazy"]


def _load_of(element: Any) -> Iterator[tuple[Any, str | None]]:
    strategy = dict(element.strategy or ())
    path = element.path.path  # entity, relationship, entity, relationship, ...
    if len(path) <= _FIRST_LEVEL and "lazy" in strategy:
        # contains_eager() is "joined" too; but a separate statement locks the program's join first.
        contained = "eager_from_alias" in element.local_opts
        relationship = path[1] if hasattr(path[1], "key") else "*"
        yield relationship, "contained" if contained else strategy["lazy"]


def narrowed_by(options: Iterable[Any]) -> Iterator[Any]:
    """Yield the relationships, at any level, from which an option may exclude members; ``*``: all.

    Such are contains_eager(), ``joinedload(Order.lines.and_(...))``, and with_loader_criteria().
    """
    for option in options:
        if hasattr(option, "where_criteria"):
            yield "*"
        for element in getattr(option, "context", ()):
            if "eager_from_alias" in element.local_opts or element._extra_criteria:
                yield next((step for step in element.path.path[::-1] if hasattr(step, "key")), "*")


def expressions_of(options: Iterable[Any]) -> Iterator[tuple[Any, str, Any]]:
    """Yield the arguments of with_expression(): the mapper or alias, the attribute, its expression."""
    for element in chain.from_iterable(getattr(option, "context", ()) for option in options):
        if "query_expression" in dict(element.strategy or ()):
            *_, entity, attribute = element.path.path
            yield from ((entity, attribute.key, criterion) for criterion in element._extra_criteria)


def undefers(options: Iterable[Any]) -> bool:
    """Return whether an option loads a deferred column, or sets a ``query_expression()``."""
    for element in chain.from_iterable(getattr(option, "context", (option,)) for option in options):
        strategy = dict(getattr(element, "strategy", None) or ())
        groups = (str(name) for name in getattr(element, "local_opts", ()))
        if strategy.get("deferred") is False or "query_expression" in strategy:
            return True
        if any(name.startswith("undefer_group") for name in groups):
            return True
    return False


def with_options(statement: S, options: Iterable[Any]) -> S:
    """Return the same SELECT with these loader options and criteria, and no others."""
    return _copy(statement, "_with_options", tuple(options))


def _copy(statement: S, clause: str, value: Any) -> S:
    """Return a copy of the statement with another value of one clause."""
    copy = statement.where()  # where() without criteria returns a copy
    setattr(copy, clause, value)
    return copy


# attrgetter is faster than a function, and every lock calls it.
execute_listeners: Callable[[Session], Any] = attrgetter("dispatch.do_orm_execute")
"""Return the do_orm_execute listeners that the session calls; false if there are none."""


def collect_listeners(session_class: type[Session]) -> None:
    """Let SQLAlchemy collect the superclasses' listeners for this class.

    By itself, it does so when the first session of a class reads its dispatch, and without a lock:
    of two threads that do so at once, one may find none of them.  A sessionmaker creates a class.
    """
    _ = object.__new__(session_class).dispatch


class _Listeners(tuple[Any, ...]):  # noqa: SLOT001  # a tuple's subclass can have none
    """The listeners of an event, in a tuple that is replaced on every change.

    SQLAlchemy has a deque: a thread that iterates while another adds a listener gets "deque mutated
    during iteration".  Its documentation forbids event.listen() while the event runs.  Iterating
    over the old tuple is safe; it lacks the new listener.
    """

    # Threads: every change is made under this lock, to the current value.
    changing = Lock()
    collection: ReferenceType[Any]  # SQLAlchemy's collection of these listeners

    def append(self, listener: Any) -> None:
        self._change(lambda now: (*now, listener))

    def appendleft(self, listener: Any) -> None:
        self._change(lambda now: (listener, *now))

    def extend(self, listeners: Iterable[Any]) -> None:
        self._change(lambda now: (*now, *listeners))

    def remove(self, listener: Any) -> None:
        self._change(lambda now: (known for known in now if known != listener))

    def clear(self) -> None:
        self._change(lambda _now: ())

    def _change(self, change: Callable[[tuple[Any, ...]], Iterable[Any]]) -> None:
        collection: Any = self.collection()  # which calls this
        with self.changing:
            _put_listeners(collection, change(collection.listeners))


def _put_listeners(collection: Any, listeners: Iterable[Any]) -> None:
    put = _Listeners(listeners)
    put.collection = ref(collection)  # weak, to avoid a cycle with the session
    collection.listeners = put


def allow_listening(owners: Iterable[Any], name: str) -> None:
    """Allow event.listen() for an event from now on, even while it runs, here or in other threads.

    A lock listens to its classes when they are first locked, and other threads may use them by
    then. A lock taken in a listener may listen to the very event whose listeners SQLAlchemy is
    calling.

    :param owners: the objects that have the event themselves, not by inheritance: attributes,
        mappers, a dialect, a session.
    """
    for owner in owners:
        dispatch = owner.dispatch
        collection = getattr(dispatch, name).for_modify(dispatch)
        if not isinstance(collection.listeners, _Listeners):
            _put_listeners(collection, collection.listeners)


@contextmanager
def listening_last(session: Session, listener: Callable[[ORMExecuteState], Any]) -> Iterator[None]:
    """Call a do_orm_execute listener after all others in a block.

    The block may be in a listener, which SQLAlchemy calls before another statement.
    """
    allow_listening([session], "do_orm_execute")
    try:
        event.listen(session, "do_orm_execute", listener)
        yield
    finally:
        if event.contains(session, "do_orm_execute", listener):  # else interrupted before
            event.remove(session, "do_orm_execute", listener)


def insert_listener(owner: Any, name: str, listener: Callable[..., Any]) -> None:
    """Call a listener before the owner's others; for a dialect, SQLAlchemy ignores insert=True.

    :param owner: after :func:`allow_listening` for this event.
    """
    getattr(owner.dispatch, name).listeners.appendleft(listener)


class _BehindOurs(NamedTuple):
    listener: Callable[..., Any]
    others: Collection[Any]  # of the classes above, which SQLAlchemy calls first

    def __iter__(self) -> Iterator[Any]:
        return chain((self.listener,), self.others)


def listen_first(owner: Any, name: str, listener: Callable[..., Any]) -> None:
    """Call a listener before all others, including the superclasses'."""
    collection = getattr(owner.dispatch, name)
    collection.parent_listeners = _BehindOurs(listener, collection.parent_listeners)


class ForUpdate(NamedTuple):
    """The arguments of ``with_for_update()``."""

    of: tuple[int, ...]  # ids of tables: SQLAlchemy overloads == of columns
    read: bool
    nowait: bool
    skip_locked: bool
    key_share: bool = False


# attrgetter is faster than a function, and every statement of a session calls it.
for_update_clause: Callable[[Select[Any] | CompoundSelect[Any]], Any] = attrgetter(
    "_for_update_arg"
)
"""Return the ``with_for_update()`` in force, or None."""


def for_update_of(statement: Select[Any]) -> ForUpdate | None:
    """Return the arguments of the ``with_for_update()`` in force, or None."""
    found = for_update_clause(statement)
    if found is None:
        return None
    of = tuple(id(table) for table in found.of or ())
    return ForUpdate(of, found.read, found.nowait, found.skip_locked, found.key_share)


lock_clauses: Callable[[Select[Any]], tuple[object, ...]] = attrgetter(
    *("_for_update_arg", "_hints"),
    *("_raw_columns", "_distinct", "_group_by_clauses", "_having_criteria", "_with_options"),
)
"""Return the clauses with a lock, and the clauses that determine whether its rows can be locked."""


def has_clauses(statement: Select[Any], clauses: Iterable[object]) -> bool:
    """Return whether the statement still has the clauses that :func:`lock_clauses` returned.

    SQLAlchemy changes none in place: a changed statement is a copy, with another clause.
    """
    return all(map(is_, lock_clauses(statement), clauses))


def cache_key_of(statement: Any) -> Any | None:
    """Return the key of SQLAlchemy's own cache of statements, equal for those with the same SQL.

    None for a statement that it does not cache.  The statement stores its key, for the cache too.
    """
    found = statement._generate_cache_key()
    return None if found is None else found.key


def for_update_tables(statement: Select[Any]) -> list[Any]:
    """Return the tables of its ``with_for_update(of=)``; empty: all that the statement reads."""
    found = for_update_clause(statement)
    return [] if found is None else [getattr(target, "table", target) for target in found.of or ()]


def buffer_rows(result: Result[Any]) -> list[Any]:
    """Return the rows of an unread result, which stay in it.

    The public ``freeze()`` loses facts about the result, such as that it needs ``unique()``, or its
    ``rowcount``.  A row is a tuple, or its only object.  Objects that replace others in the list,
    before the result is read, become its rows.
    """
    if isinstance(result, CursorResult):
        of_cursor = list(result.all())
        result._rewind(of_cursor)
        return of_cursor
    iterator: Any = result
    rows = list(iterator.iterator)
    left = iter(rows)

    def chunks(size: int | None) -> Iterator[list[Any]]:
        while chunk := list(islice(left, size)):
            yield chunk

    iterator.chunks = chunks
    iterator.iterator = left
    return rows


def objects_at(places: Sequence[int], rows: Iterable[Any]) -> list[Any]:
    """Return the objects at these places of buffered rows; None where an outer join has no row."""
    found: list[Any] = []
    for row in rows:
        objects = row if isinstance(row, tuple) else (row,)
        found.extend(map(objects.__getitem__, places))
    return found


def keep_rows(context: ExecutionContext, cursor: DBAPICursor) -> list[Any] | None:
    """Return the rows of a SELECT that has just run, which its result keeps; None: no rows.

    The cursor strategies are undocumented, but dialects of other packages use them like this.
    """
    unfetched: Any = context
    is_write = unfetched.isinsert or unfetched.isupdate or unfetched.isdelete
    streams = context.execution_options.get("stream_results", False)
    if is_write or streams or cursor.description is None:
        return None
    rows = list(cursor.fetchall())
    unfetched.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(cursor, initial_buffer=rows)
    return rows


def hint_of(statement: Select[Any], table: Any, dialect: str) -> str | None:
    """Return the table's hint for this dialect: of several, the one given last."""
    found = None
    for (hinted, name), hint in statement._hints.items():
        if name in ("*", dialect) and hinted == table:
            found = hint
    return found


def hints_of(statement: Select[Any]) -> frozenset[tuple[str, str]]:
    """Return the table hints of the statement, each after the name of its dialect."""
    return frozenset((name, hint) for (_, name), hint in statement._hints.items())


def with_last_hint(statement: S, table: Any, hint: str, dialect: str) -> S:
    """Return the statement with this hint in force, even if the table has several of them."""
    # A hint for the same dialect would replace the present one, before a hint for all dialects.
    hinted = statement.with_hint(table, hint, dialect)
    others = {key: other for key, other in hinted._hints.items() if key != (table, dialect)}
    if others:
        hinted._hints = immutabledict({**others, (table, dialect): hint})
    return hinted


def without_hints(statement: S, table: Any, dialects: Collection[str]) -> S:
    """Return the statement without the hints of this table for these dialects."""
    hints = statement._hints.items()
    kept = {key: hint for key, hint in hints if key[0] is not table or key[1] not in dialects}
    return _copy(statement, "_hints", immutabledict(kept))


def without_statement_hints(statement: S, hints: Collection[tuple[str, str]]) -> S:
    """Return the statement without these hints: the names of dialects, and the texts."""
    kept = tuple(hint for hint in statement._statement_hints if hint not in hints)
    return _copy(statement, "_statement_hints", kept)


def hint_comments_of(statement: Select[Any]) -> Iterator[str]:
    """Yield the content of the comments with optimizer hints, of ``prefix_with("/*+ ... */")``."""
    for prefix, _ in statement._prefixes:
        found = re.fullmatch(_HINT_COMMENT, str(prefix))
        if found is not None:
            yield found[1].strip()


def with_hint_comment(statement: S, comment: TextClause) -> S:
    """Return the statement with this comment of hints after SELECT, replacing those it has."""
    hinted = statement.prefix_with(comment)
    *before, ours = hinted._prefixes
    kept = (prefix for prefix in before if re.fullmatch(_HINT_COMMENT, str(prefix[0])) is None)
    hinted._prefixes = (ours, *kept)
    return hinted


def without_lock(statement: S) -> S:
    """Return the same SELECT without its lock, to run again when its rows are locked."""
    return _copy(statement, "_for_update_arg", None)


def has_limit(statement: Select[Any]) -> bool:
    """Return whether ``limit()`` or ``fetch()`` was called."""
    return statement._limit_clause is not None or statement._fetch_clause is not None


def has_offset(statement: Select[Any]) -> bool:
    """Return whether ``offset()`` was called."""
    return statement._offset_clause is not None


def order_of(statement: Select[Any]) -> tuple[Any, ...]:
    """Return the arguments of ``order_by()``."""
    return tuple(statement._order_by_clauses)


def only_columns(statement: Select[Any], columns: Sequence[Any]) -> Select[Any]:
    """Return a SELECT of the same rows that reads only these columns."""
    narrow = statement.with_only_columns(*columns, maintain_column_froms=True)
    narrow._with_options = ()  # loader options need the omitted entity
    return narrow


def all_mappers() -> Iterator[Mapper[Any]]:
    """Yield the mappers of all classes of the process; a Table does not know its mappers."""
    for registry in _all_registries():
        yield from registry.mappers


def is_flushing(session: Session) -> bool:
    """Return whether the session is in its flush, where it cannot be flushed."""
    return session._flushing


# The public session.new, .dirty and .deleted build a new set on each use.  attrgetter is faster
# than a function, and every flush calls these.
new_states: Callable[[Session], Collection[InstanceState[Any]]] = attrgetter("_new")
"""Return the states of the objects that were added, and are not flushed."""

modified_states: Callable[[Session], set[InstanceState[Any]]] = attrgetter("identity_map._modified")
"""Return the states of the persistent objects that may have changes."""

deleted_states: Callable[[Session], Collection[InstanceState[Any]]] = attrgetter("_deleted")
"""Return the states of the objects that the next flush deletes."""


def states_to_flush(session: Session) -> tuple[AbstractSet[InstanceState[Any]], ...]:
    """Return the new, modified and deleted states: all that a flush examines."""
    return session._new.keys(), session.identity_map._modified, session._deleted.keys()


def refreshed_by(options: Mapping[str, Any]) -> InstanceState[Any] | None:
    """Return the object that ``Session.refresh()`` reads by a statement with these options."""
    found: InstanceState[Any] | None
    found = getattr(options.get("_sa_orm_load_options"), "_refresh_state", None)
    return found


def reads_only_some(select: Select[Any]) -> bool:
    """Return whether this is the SELECT of ``Session.refresh()`` for some attributes only."""
    compiled_by: Any = select._compile_options
    return bool(getattr(compiled_by, "_only_load_props", None))


def narrowed(result: Result[Any], width: int, options: Mapping[str, Any], *, alone: bool) -> Any:
    """Return the result of a statement without the columns that were added to it.

    :param width: the number of its own columns.
    :param options: the execution options of its execution.
    :param alone: its only own column is an object, which ``Query`` returns without a row around it.
    """
    own = result.columns(*range(width))
    if alone and not getattr(options.get("_sa_orm_load_options"), "_only_return_tuples", False):
        own._attributes = own._attributes.union({"is_single_entity": True})
    return own


def autoflush(session: Session, options: Mapping[str, Any]) -> None:
    """Flush as SQLAlchemy does before it executes a statement with these execution options."""
    of_query = getattr(options.get("_sa_orm_load_options"), "_autoflush", True)
    if session.autoflush and of_query and options.get("autoflush", True) and not session._flushing:
        try:
            session.flush()
        except StatementError as error:
            error.add_detail(
                "raised as a result of Query-invoked autoflush; consider using a session.no_autoflush "
                "block if this flush is occurring prematurely"
            )
            raise


def written_out(statement: Any) -> Any:
    """Return the statement behind a ``lambda_stmt()``, with the values of this call."""
    return getattr(statement, "_resolved", statement)


def rows_of_values(statement: ValuesBase) -> Iterator[Mapping[Any, Any]]:
    """Yield the rows of ``values()`` and ``ordered_values()``: by column, attribute or name."""
    ordered = getattr(statement, "_ordered_values", None)  # SQLAlchemy 2.0
    if statement._multi_values:
        names = statement.table.columns.keys()
        for row in chain.from_iterable(statement._multi_values):
            yield row if isinstance(row, Mapping) else dict(zip(names, row, strict=False))
    elif values := ordered or statement._values:
        yield dict(values)


def variants_of(type_: TypeEngine[Any]) -> tuple[TypeEngine[Any], ...]:
    """Return the types that replace this one on some databases, by ``with_variant()``."""
    # dialect_impl() needs a dialect, which is unknown here.
    variants: Mapping[str, TypeEngine[Any]] = getattr(type_, "_variant_mapping", {})
    return tuple(variants.values())


def with_variant(
    type_: TypeEngine[Any], variant: TypeEngine[Any], database: str
) -> TypeEngine[Any]:
    """Return the type with a variant for this database, replacing an existing one."""
    copied: Any = type_.copy()
    copied._variant_mapping = immutabledict({**copied._variant_mapping, database: variant})
    found: TypeEngine[Any] = copied
    return found


def closes_connection(transaction: SessionTransaction, connection: Connection) -> bool:
    """Return whether the session closes this connection with its transaction.

    It closes connections from a pool, but not one that the program has lent it.
    """
    while transaction.parent is not None:
        transaction = transaction.parent
    # A program may override get_bind(), so only the transaction knows its connections.  If the name
    # is gone, nothing is certain: do not close.
    connections: Mapping[Any, Any] = getattr(transaction, "_connections", {})
    *_, closes = connections.get(connection, (False,))
    return bool(closes)


def savepoints_of(session: Session) -> dict[SessionTransaction, bool]:
    """Return the savepoints of the session, the innermost first, each with whether it is rolled back.

    The event of a savepoint's end comes later, and not at all after an interruption; and
    ``get_nested_transaction()`` omits a savepoint whose creation was interrupted.
    """
    found: dict[SessionTransaction, bool] = {}
    transaction = session._transaction
    while transaction is not None:
        rolled_back = transaction._state is SessionTransactionState.DEACTIVE
        if rolled_back:
            found = dict.fromkeys(found, True)  # including everything inside
        if transaction.nested:
            found[transaction] = rolled_back
        transaction = transaction.parent
    return found


def savepoint_on(
    session: Session, connection: Connection, name: str | None = None
) -> SessionTransaction | None:
    """Return the innermost savepoint of the session that is set on this connection.

    SQLAlchemy sets one when the session first uses the connection in it.

    :param name: return the one of this name.
    """
    transaction = session._transaction
    while transaction is not None:
        if transaction.nested and connection in transaction._connections:
            _, savepoint, *_ = transaction._connections[connection]
            if name is None or getattr(savepoint, "_savepoint", None) == name:
                return transaction
        transaction = transaction.parent
    return None


def all_sessions() -> list[Session]:
    """Return all sessions of the process; threads may create others meanwhile.

    SQLAlchemy knows them for ``object_session()`` and ``close_all_sessions()``.
    """
    return [session for reference in _sessions.valuerefs() if (session := reference()) is not None]


# attrgetter is faster than a function, and every commit calls it.
innermost: Callable[[Session], SessionTransaction] = attrgetter("_transaction")
"""Return the innermost savepoint of the session, or its transaction; there must be one."""


def commits_savepoint(session: Session) -> bool:
    """Return whether a savepoint of the session has begun to commit; for "before_commit".

    Leaving ``with session.begin():`` also commits the savepoints that are still open inside.  The
    event of the whole comes first, while they are open, and before theirs.
    """
    transaction = session._transaction
    while transaction is not None and transaction._next_state is _StateChangeStates.ANY:
        transaction = transaction.parent  # this one is open, inside the one that commits
    return transaction is not None and transaction.nested


def ends_on_return(pool: Pool) -> bool:
    """Return whether the pool itself ends the transaction of a connection that returns."""
    style = getattr(pool, "_reset_on_return", None)
    return style is not ResetStyle.reset_none  # if the name is gone: the default


def connects_by_url(pool: Pool) -> bool:
    """Return whether SQLAlchemy itself makes the connections of the pool, without ``creator=``."""
    creator = getattr(pool, "_creator", None)  # if the name is gone: unknown
    return getattr(creator, "__module__", None) == create_engine.__module__


def raise_as_statement(connection: Connection, error: DBAPIError) -> NoReturn:
    """Raise the error of a statement that bypassed SQLAlchemy, handled like any other statement's error.

    So ``handle_error`` translates it, and a lost connection is invalidated.
    """
    handle = getattr(connection, "_handle_dbapi_exception", None)
    if (
        handle is not None and error.orig is not None and error.params is None
    ):  # otherwise handled before
        handle(error.orig, error.statement, None, None, None)
    raise error


def largest_size(pool: QueuePool) -> int | None:
    """Return the number of connections that the pool may open; None: any number."""
    overflow: int = getattr(pool, "_max_overflow", 0)  # if the name is gone: the size alone
    return None if overflow < 0 or pool.size() <= 0 else pool.size() + overflow


def guard_finalizers(record: ConnectionPoolEntry) -> None:
    """Let a finalizer that fails close the connection, instead of raising its error.

    SQLAlchemy restores the old isolation level by a finalizer, which runs after everything that the
    pool protects when a connection returns to it.
    """
    finalizers: Any = getattr(record, "finalize_callback", ())  # if it is gone: the error is raised
    for _ in range(len(finalizers)):
        finalizers.append(partial(_finalize, record, finalizers.popleft()))


def _finalize(
    record: Any, finalizer: Callable[[DBAPIConnection], None], dbapi_connection: DBAPIConnection
) -> None:
    try:
        finalizer(dbapi_connection)
    except BaseException as error:
        record.invalidate(error)  # as after an error of the ROLLBACK before
        if not isinstance(error, Exception):
            # The error leaves checkin() early; this finishes its work.
            record.checkin(_fairy_was_created=False)
            raise
