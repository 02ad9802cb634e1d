"""The private names of SQLAlchemy that this library reads, all of them in this one file.

SQLAlchemy has no public way to ask a Select for its DISTINCT, GROUP BY, lock or loader
options, or an INSERT for its values; nor a session or a connection pool for what the functions
at the end of this file return.  tests/unit/test_sqlalchemy_internals*.py fail when one of the
names goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Select
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.dml import ValuesBase
from sqlalchemy.util import immutabledict

S = TypeVar("S", bound=Select)  # type: ignore[type-arg]  # see statements/with_lock.py

_FIRST_LEVEL = 3  # entity, relationship, entity


def is_distinct(statement: Select[Any]) -> bool:
    """Return whether ``distinct()`` was called."""
    return bool(statement._distinct)


def is_grouped(statement: Select[Any]) -> bool:
    """Return whether ``group_by()`` or ``having()`` was called."""
    return bool(statement._group_by_clauses or statement._having_criteria)


def without_options(statement: S, ours: Collection[Any]) -> S:
    """Return the same SELECT without those of our loader options that collide with another's."""
    theirs = [option for option in statement._with_options if option not in ours]
    chosen = {relationship for relationship, _ in loads_of(theirs)}
    copy = statement.where()  # a generative copy: nothing is added
    copy._with_options = tuple(
        option
        for option in statement._with_options
        if option not in ours or chosen.isdisjoint(r for r, _ in loads_of([option]))
    )
    return copy


def options_of(statement: Select[Any]) -> tuple[Any, ...]:
    """Return the loader options and criteria of the statement."""
    return tuple(statement._with_options)


def loads_of(options: Iterable[Any]) -> Iterator[tuple[str, str | None]]:
    """Yield the relationships of the selected entities themselves, with their loader strategy.

    ``*`` stands for all relationships, and the strategy "contained" for contains_eager().
    """
    for option in options:
        if hasattr(option, "context"):
            for element in option.context:
                yield from _load_of(element)
        else:  # joinedload("*"); also with_loader_criteria(), which has no strategy
            strategy = dict(getattr(option, "strategy", None) or ())
            if "lazy" in strategy:
                yield "*", strategy["lazy"]


def _load_of(element: Any) -> Iterator[tuple[str, str | None]]:
    strategy = dict(element.strategy or ())
    path = element.path.path  # entity, relationship, entity, relationship, ...
    if len(path) <= _FIRST_LEVEL and "lazy" in strategy:
        # contains_eager() is "joined" too, but over a join of the user's own, for which the
        # header is locked by a statement in front.
        contained = "eager_from_alias" in element.local_opts
        yield getattr(path[1], "key", "*"), "contained" if contained else strategy["lazy"]


class ForUpdate(NamedTuple):
    """The arguments of ``with_for_update()``."""

    of: tuple[int, ...]  # ids of tables: SQLAlchemy overloads == of columns
    read: bool
    nowait: bool
    skip_locked: bool
    key_share: bool = False


def for_update_of(statement: Select[Any]) -> ForUpdate | None:
    """Return the arguments of the ``with_for_update()`` that is in force, if there is one."""
    found = statement._for_update_arg
    if found is None:
        return None
    of = tuple(id(table) for table in found.of or ())
    return ForUpdate(of, found.read, found.nowait, found.skip_locked, found.key_share)


def hint_of(statement: Select[Any], table: Any, dialect: str) -> str | None:
    """Return the table's hint on this dialect: of several, the one that was given last."""
    found = None
    for (hinted, name), hint in statement._hints.items():
        if name in ("*", dialect) and hinted == table:
            found = hint
    return found


def with_last_hint(statement: S, table: Any, hint: str, dialect: str) -> S:
    """Return the statement with this hint, in force also where the table has several of them."""
    # One for the same dialect would be replaced where it stands, in front of one for all.
    hinted = statement.with_hint(table, hint, dialect)
    hints = dict(hinted._hints)
    del hints[table, dialect]
    hinted._hints = immutabledict({**hints, (table, dialect): hint})
    return hinted


def without_lock(statement: S) -> S:
    """Return the same SELECT without its lock, to be run again when its rows are locked."""
    copy = statement.where()  # a generative copy: nothing is added
    copy._for_update_arg = None
    return copy


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
    """Return a SELECT of the same rows that reads just these columns."""
    narrow = statement.with_only_columns(*columns, maintain_column_froms=True)
    narrow._with_options = ()  # loader options need the entity that was left out
    return narrow


def statement_of(context: Any) -> Any:
    """Return the statement that has read the object of an event of InstanceEvents."""
    return context.query


def is_flushing(session: Session) -> bool:
    """Return whether the session is in its flush, where it cannot be flushed."""
    return session._flushing


class Values(NamedTuple):
    """The values of an INSERT or UPDATE, before its parameters are known."""

    rows: tuple[Mapping[Any, Any], ...]  # by column, attribute or name; empty: all parameters
    from_select: bool
    overwrites: bool  # ON CONFLICT DO UPDATE, OR REPLACE
    conditional: bool  # these, ON CONFLICT DO NOTHING, IGNORE: a row may have been there before


def values_of(statement: ValuesBase) -> Values:
    """Return what ``values()``, ``ordered_values()`` and ``from_select()`` have set."""
    conflict = getattr(statement, "_post_values_clause", None)
    does_nothing = "DoNothing" in type(conflict).__name__
    prefixes = [str(prefix).upper() for prefix, _ in statement._prefixes]
    replaces = any("REPLACE" in prefix for prefix in prefixes)
    return Values(
        tuple(_rows_of(statement)),
        from_select=getattr(statement, "select", None) is not None,
        overwrites=replaces or (conflict is not None and not does_nothing),
        conditional=conflict is not None or bool(prefixes),
    )


def _rows_of(statement: ValuesBase) -> Iterator[Mapping[Any, Any]]:
    ordered = getattr(statement, "_ordered_values", None)  # SQLAlchemy 2.0
    if statement._multi_values:
        names = statement.table.columns.keys()
        for row in chain.from_iterable(statement._multi_values):
            yield row if isinstance(row, Mapping) else dict(zip(names, row, strict=False))
    elif values := ordered or statement._values:
        yield dict(values)


def closes_connection(transaction: SessionTransaction, connection: Connection) -> bool:
    """Return whether the session closes this connection with its transaction.

    It closes those that it has taken from a pool, and not one that the program has lent it.
    """
    while transaction.parent is not None:
        transaction = transaction.parent
    # A program may override get_bind(), so only the transaction itself knows what it was given.
    # Where the name is gone, nothing is sure: not closing is the careful answer.
    connections: Mapping[Any, Any] = getattr(transaction, "_connections", {})
    *_, closes = connections.get(connection, (False,))
    return bool(closes)


def guard_finalizers(record: ConnectionPoolEntry) -> None:
    """Have a finalizer that fails close the connection, in place of raising its error.

    SQLAlchemy sets the old isolation level back by a finalizer, which runs after all that the
    pool guards when a connection goes back to it.
    """
    finalizers: Any = getattr(record, "finalize_callback", ())  # absent: the error is raised
    for _ in range(len(finalizers)):
        finalizers.append(partial(_finalize, record, finalizers.popleft()))


def _finalize(
    record: Any, finalizer: Callable[[DBAPIConnection], None], dbapi_connection: DBAPIConnection
) -> None:
    try:
        finalizer(dbapi_connection)
    except BaseException as error:
        record.invalidate(error)  # as after an error of the ROLLBACK that came before
        if not isinstance(error, Exception):
            # The error leaves checkin() before its end; this does the rest of it.
            record.checkin(_fairy_was_created=False)
            raise
