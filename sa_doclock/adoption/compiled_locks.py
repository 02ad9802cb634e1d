"""The locks of a compiled statement: each ``with_for_update()``, wherever it is in the statement."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnClause, CompoundSelect, Insert, Select, UpdateBase
from sqlalchemy.engine import Compiled
from sqlalchemy.sql.visitors import ExternallyTraversible

from ..core.documents import from_clauses_within, may_read_rows
from ..core.same_tables import folded_name
from ..dialects.base import LockStatements
from ..options import LockOptions, base_of
from ..sqlalchemy_internals import for_update_clause, hints_of, rows_of_values
from .for_update import LockedFroms, inner_select, is_key_share, lock_of_for_update, locked_froms
from .locked_headers import froms_returned

_QUERIES: Final = (Select, CompoundSelect)
_Query = Select[Any] | CompoundSelect[Any]


class CompiledLock(NamedTuple):
    """One ``with_for_update()`` of a statement.

    :ivar lock: the lock; None for a UNION, for which SQLAlchemy renders none.
    :ivar hints: the table hints of its SELECT, each after the name of its dialect.
    :ivar froms: its locked FROM clauses, in each SELECT that renders it.
    :ivar key_share: it is ``FOR KEY SHARE``, under which others change the rows.
    """

    lock: LockOptions | None
    hints: frozenset[tuple[str, str]]
    froms: tuple[LockedFroms, ...]
    key_share: bool

    def tables_on(self, statements: LockStatements) -> Iterable[Any]:
        """Return the tables whose rows it locks on a database with these statements.

        :raises LockNotSupported: there are none.
        """
        return dict.fromkeys(
            table for source in self.froms for table in source.tables_on(statements)
        )


class CompiledLocks(NamedTuple):
    """The locks of a statement: its own, if it is a locking SELECT, and those within.

    :ivar reads_more: a locking SELECT reads more than the rows of one table.
    :ivar writes: it contains an INSERT, UPDATE or DELETE.
    :ivar unread: the tables of rows that it locks and returns neither as objects nor by key.
    :ivar tables: all tables of which it locks rows.
    """

    outermost: CompiledLock | None
    within: tuple[CompiledLock, ...]
    reads_more: bool = False
    writes: bool = False
    unread: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()

    @property
    def all(self) -> tuple[CompiledLock, ...]:
        """Both."""
        return self.within if self.outermost is None else (self.outermost, *self.within)


NO_LOCKS: Final = CompiledLocks(None, ())
"""Most statements have none."""


def locks_in(compiled: Compiled) -> CompiledLocks:
    """Return the locks in the statement, from whatever source.

    Criteria that options add to the entities of a subquery are not examined.
    """
    given: Any = compiled.statement
    # The ORM's statement also has the expressions of the mapping and of options.
    made = getattr(compiled.compile_state, "statement", None)
    elements = [*_elements_within(given, made)]
    queries = [element for element in elements if isinstance(element, _QUERIES)]
    # The locking SELECTs by clause: the ORM writes one SELECT as several.
    by_clause: dict[int | None, list[_Query]] = {}
    for query in queries:
        by_clause.setdefault(id(for_update_clause(query)), []).append(query)
    by_clause.pop(id(None), None)
    if not by_clause:
        return NO_LOCKS
    select = inner_select(given)
    clause = id(for_update_clause(select)) if isinstance(select, _QUERIES) else None
    reads_more = _reads_more(by_clause.get(clause, ()), queries, elements)
    own = [_lock_of(by_clause.pop(clause))] if clause in by_clause else []
    within = tuple(map(_lock_of, by_clause.values()))
    outermost, others = next(iter(own), None), within
    if select is not given:
        outermost, others = None, (*own, *within)
    return CompiledLocks(
        outermost,
        others,
        reads_more,
        any(isinstance(element, UpdateBase) for element in elements),
        frozenset(
            [
                *_tables_of(
                    own, froms_returned(given) if own and isinstance(select, Select) else ()
                ),
                *_tables_of(within),
            ]
        ),
        frozenset(_tables_of([*own, *within])),
    )


def _tables_of(locks: Iterable[CompiledLock], read: Collection[Any] = ()) -> Iterator[str]:
    """Yield the names of the tables that these lock, except these FROM clauses."""
    for froms in chain.from_iterable(lock.froms for lock in locks if not lock.key_share):
        unread = froms._replace(tables=tuple(named for named in froms.tables if named not in read))
        yield from map(folded_name, unread.tables_below(froms.subqueries))


def _reads_more(
    own: Sequence[_Query], queries: Sequence[_Query], elements: Iterable[object]
) -> bool:
    """Return whether a locking statement reads more than rows of one table."""
    froms = (query.get_final_froms() for query in own if isinstance(query, Select))
    joins = any(len([*from_clauses_within(each)]) > 1 for each in froms)
    return bool(own) and (len(own) < len(queries) or joins or any(map(may_read_rows, elements)))


def strongest_of(locks: Iterable[CompiledLock]) -> LockOptions | None:
    """Return one lock that is as strong as all of them, or None without locks."""
    wanted = [lock.lock for lock in locks if lock.lock is not None]
    if not wanted:
        return None
    exclusive = any(base_of(lock) is LockOptions.ForUpdate for lock in wanted)
    modifiers = reduce(or_, [lock & ~(base_of(lock) | LockOptions.NoKey) for lock in wanted])
    return (LockOptions.ForUpdate if exclusive else LockOptions.SharedRead) | modifiers


def _lock_of(selects: Sequence[_Query]) -> CompiledLock:
    written = [select for select in selects if isinstance(select, Select)]
    lock = lock_of_for_update(written[0]) if len(written) == len(selects) else None
    hints = frozenset[tuple[str, str]]().union(*map(hints_of, written))
    key_share = any(map(is_key_share, written))
    return CompiledLock(lock, hints, tuple(map(locked_froms, written)), key_share)


def _elements_within(*statements: Any) -> Iterator[ExternallyTraversible]:
    """Yield each element of these statements once.

    SQLAlchemy's own iteration stops at a column, and so misses the SELECTs that an UPDATE or DELETE
    reads by the columns of a CTE, and the rows of a multi-row INSERT.
    """
    to_visit = [statement for statement in statements if statement is not None]
    seen: dict[int, Any] = {}  # by id: SQLAlchemy overloads == of columns
    while to_visit:
        element = to_visit.pop()
        if id(element) in seen or not isinstance(element, ExternallyTraversible):
            continue
        seen[id(element)] = element
        yield element
        to_visit += element.get_children()
        if isinstance(element, ColumnClause) and element.table is not None:
            to_visit.append(element.table)
        elif isinstance(element, Insert):
            to_visit += chain.from_iterable(row.values() for row in rows_of_values(element))
