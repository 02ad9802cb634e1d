"""SQLAlchemy's ``with_for_update()``: the corresponding lock, and the rows that its SQL locks.

One rule decides on the rows, by the FROM of the SELECT.  A database locks rows of the tables that
the SELECT itself reads, or of the tables that ``of`` names; some also lock those of the tables in
its subqueries.  None locks rows of a CTE, of VALUES, of a function, or of a subquery in another
clause. https://www.postgresql.org/docs/current/sql-select.html, "The Locking Clause";
https://dev.mysql.com/doc/refman/8.4/en/innodb-locking-reads.html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sqlalchemy import CTE, Select, TableClause, TextClause
from sqlalchemy.orm import FromStatement
from sqlalchemy.sql.selectable import AliasedReturnsRows, SelectBase, SelectStatementGrouping

from ..core.documents import from_clauses_within
from ..dialects.base import LockStatements, Reach
from ..errors import LockNotSupported
from ..options import LockOptions
from ..sqlalchemy_internals import ForUpdate, for_update_clause, for_update_of, for_update_tables

_NO_TABLE: Final = (
    "FOR UPDATE does not lock the rows of a subquery or CTE. Select from the table, or from the "
    "mapped class"
)

_NO_HINT: Final = (
    "the lock of this database is a table hint, and a FROM clause written as text() cannot take one. "
    "Select from table() or from the mapped class"
)


def lock_of_for_update(statement: Select[Any]) -> LockOptions | None:
    """Return the lock that the statement's ``with_for_update()`` means, or None."""
    found = for_update_of(statement)
    return None if found is None else _lock_of(found._replace(of=()))


# Threads: a cached pure function.
@lru_cache(maxsize=16)  # every possible argument
def _lock_of(found: ForUpdate) -> LockOptions:
    lock = LockOptions.SharedRead if found.read else LockOptions.ForUpdate
    if found.key_share and not found.read:
        lock |= LockOptions.NoKey
    if found.nowait:
        lock |= LockOptions.NoWait
    if found.skip_locked:
        lock |= LockOptions.SkipLocked
    return lock


def is_key_share(select: Select[Any]) -> bool:
    """Return whether the lock is ``FOR KEY SHARE``, which protects no document."""
    found = for_update_of(select)
    return found is not None and found.read and found.key_share


def inner_select(statement: Any) -> Any:
    """Return the executed statement: for ``from_statement()``, its argument."""
    return statement.element if isinstance(statement, FromStatement) else statement


def with_inner_select(statement: Any, select: Any) -> Any:
    """Return the statement with this select as the executed one."""
    if not isinstance(statement, FromStatement):
        return select
    if statement.element is not select:
        statement = statement.options()  # options() without arguments returns a copy
        statement.element = select
    return statement


class LockedFroms(NamedTuple):
    """The locked FROM clauses of a SELECT.

    :ivar tables: tables and aliases of tables.
    :ivar subqueries: the statements in the subqueries among them.
    :ivar has_text: they include ``text()``, which is assumed to be a table.
    """

    tables: tuple[Any, ...]
    subqueries: tuple[Any, ...]
    has_text: bool

    def tables_on(self, statements: LockStatements) -> Iterator[Any]:
        """Return the tables whose rows are locked on a database with these statements.

        :raises LockNotSupported: there are none.
        """
        found = self.subqueries if Reach.SUBQUERIES in statements.reach else ()
        if not (self.tables or self.has_text or found):
            raise LockNotSupported(_NO_TABLE)
        yield from self.tables_below(found)

    def tables_below(self, subqueries: Iterable[Any]) -> Iterator[Any]:
        """Yield its tables, and those of these subqueries."""
        yield from map(base_of_from, self.tables)
        for subquery in subqueries:
            yield from _tables_below(subquery)


def locked_froms(select: Select[Any]) -> LockedFroms:
    """Return the tables that the ``with_for_update()`` of this SELECT locks."""
    return _sorted_by_kind(for_update_tables(select) or select.get_final_froms())


def froms_to_hint(select: Select[Any]) -> tuple[Any, ...]:
    """Return the tables, or their aliases, whose table hints make its lock, on databases with hints.

    :raises LockNotSupported: there are none, or one is written as ``text()``.
    """
    found = locked_froms(select)
    if found.has_text or not found.tables:
        raise LockNotSupported(_NO_HINT if found.has_text else _NO_TABLE)
    return found.tables


def base_of_from(from_clause: Any) -> Any:
    """Return the table, statement or function behind this FROM clause, without aliases."""
    while isinstance(from_clause, AliasedReturnsRows) and not isinstance(from_clause, CTE):
        from_clause = from_clause.element
    return from_clause.element if isinstance(from_clause, SelectStatementGrouping) else from_clause


def _sorted_by_kind(froms: Iterable[Any]) -> LockedFroms:
    bases = [(clause, base_of_from(clause)) for clause in from_clauses_within(froms)]
    return LockedFroms(
        tuple(clause for clause, base in bases if isinstance(base, TableClause)),
        tuple(base for clause, base in bases if is_subquery(clause)),
        any(isinstance(base, TextClause) for _, base in bases),
    )


def is_subquery(from_clause: Any) -> bool:
    """Return whether this FROM clause is a statement other than a CTE."""
    return isinstance(base_of_from(from_clause), SelectBase)


def _tables_below(statement: Any) -> Iterator[Any]:
    """Yield the tables that locking a subquery locks; a nested lock is checked separately."""
    if isinstance(statement, Select) and for_update_clause(statement) is None:
        found = _sorted_by_kind(statement.get_final_froms())
        yield from map(base_of_from, found.tables)
        for subquery in found.subqueries:
            yield from _tables_below(subquery)
