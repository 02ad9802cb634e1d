"""The SELECTs that lock rows: the text that a database needs in them, and the rows that they lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, Flag, auto
from typing import Any, ClassVar, Final, NamedTuple

from sqlalchemy import ForeignKeyConstraint, Table, UniqueConstraint
from sqlalchemy.types import TypeEngine

from ..options import LockOptions, base_of, is_row_lock


class Locked(Enum):
    """The scope of a lock: a part of a table, or the database."""

    ROWS = "rows"
    """The rows that it finds."""

    SHARED_ENTRIES = "shared entries"
    """The rows; but a shared lock covers only the entries of an index that contains all columns
    read, and not the rows.  Another column is read with them then; if an index contains all
    columns, the rows of a set are locked by their keys, before they are read.
    """

    WHAT_IS_READ = "what is read"
    """Whatever the plan reads: perhaps an entry of an index that contains all requested columns, or
    nothing at all.  So a locking statement reads every column of the row, and the rows of a join
    are locked by their keys.
    """

    DATABASE = "the database"
    """The whole database: the transaction has the lock, and its waiters poll."""


class Reach(Flag):
    """The tables whose rows FOR UPDATE locks, if a SELECT reads several."""

    ONE_TABLE = auto()
    """``FOR UPDATE OF header`` leaves the other tables of a join unlocked."""

    SUBQUERIES = auto()
    """FOR UPDATE also locks the rows of tables in a subquery of FROM that has no lock itself.  No
    database locks those of a CTE.
    """


class LockText(NamedTuple):
    """The text of one lock, if SQLAlchemy's ``with_for_update()`` renders none, or not all of it.

    :ivar hint: a hint of the table.
    :ivar by_key: the same in a SELECT that finds its rows by their keys; empty: ``hint``.
    :ivar candidates: the same in a SELECT that finds the rows of a join without a lock, before they
        are locked by their keys.
    :ivar suffix: the end of the SELECT.
    """

    hint: str = ""
    by_key: str = ""
    candidates: str = ""
    suffix: str = ""


NO_TEXT: Final = LockText()


class MaxParameters(NamedTuple):
    """The number of parameters that one statement can have."""

    keys: int = 32_000
    """For keys; get_entities() locks more in chunks."""

    of_or: int = 5_000
    """The same for composite keys, each an alternative of an OR, which takes time to plan:
    PostgreSQL plans 16,000 for 6 s, 2,500 for 0.4 s.
    """

    left_out: int = 16_000
    """For keys that it excludes, in addition to the program's parameters."""


class LockStatements:
    """The SELECTs that lock rows.  Here the text of SQLAlchemy's ``with_for_update()`` is the lock."""

    texts: ClassVar[Mapping[LockOptions, LockText]] = {}
    """One row for each lock that ``with_for_update()`` does not render completely."""

    locked: ClassVar[Locked] = Locked.ROWS
    """The scope of a lock: a part of a table, or the database."""

    reach: ClassVar[Reach] = Reach.ONE_TABLE
    """The tables whose rows FOR UPDATE locks, if a SELECT reads several."""

    by_keys_hint: ClassVar[str | None] = None
    """A table hint without which a SELECT of many keys may read, and lock, other rows too;
    ``{index}`` stands for the name of the index on the key.
    """

    max_parameters: ClassVar[MaxParameters] = MaxParameters()
    """The number of parameters that one statement can have."""

    retries_missing_rows: ClassVar[bool] = False
    """The statement that waited does not find a row that was replaced during the wait."""

    snapshot_level: ClassVar[str | None] = None
    """The isolation level whose snapshot serves SharedRead, if its row lock would exclude readers
    too; at another level SharedRead takes the lock of ForUpdate.  None: readers share a row lock.
    """

    def key_type(self, type_: TypeEngine[Any]) -> TypeEngine[Any] | None:
        """Return the type by which this database must get the value of a key; None: its column's.

        Otherwise the driver may send a type for which no index is used.
        """
        return None


def lock_in_select(statements: LockStatements, lock: LockOptions, level: str | None) -> LockOptions:
    """Return the lock that a SELECT must contain, in a transaction at this isolation level."""
    if statements.locked is Locked.DATABASE:
        return LockOptions.None_
    if statements.snapshot_level is None or base_of(lock) is not LockOptions.SharedRead:
        return lock if is_row_lock(lock) else base_of(lock)
    if level == statements.snapshot_level:
        return LockOptions.None_
    return lock & ~LockOptions.SharedRead | LockOptions.ForUpdate  # never weaker than requested


def parameters_for_keys(statements: LockStatements, columns: int) -> int:
    """Return the number of parameters for keys of so many columns in one statement."""
    most = statements.max_parameters
    return most.keys if columns == 1 else min(most.keys, most.of_or)


def has_hints(statements: LockStatements) -> bool:
    """Return whether the locks of this database are table hints."""
    return any(text.hint for text in statements.texts.values())


def read_beside(
    statements: LockStatements, lock: LockOptions, table: Table, unread: Iterable[Any]
) -> Sequence[Any] | None:
    """Return the columns that a SELECT must read so that its lock covers the rows of this table.

    :param statements: of the database.
    :param unread: the columns of the table, or of an alias, that it does not read yet.
    :returns: None if it may lock none, whatever it reads.
    """
    unread = tuple(unread)
    if statements.locked is Locked.WHAT_IS_READ:
        return None if is_in_index(table, ()) else unread
    shared = base_of(lock) is LockOptions.SharedRead and statements.locked is Locked.SHARED_ENTRIES
    return _read_beside_index(table, unread) if shared else ()


def _read_beside_index(table: Table, unread: tuple[Any, ...]) -> Sequence[Any] | None:
    if not is_in_index(table, unread):
        return ()
    for place, column in enumerate(unread):
        if not is_in_index(table, (*unread[:place], *unread[place + 1 :])):
            return (column,)
    return None if is_in_index(table, ()) else unread


def index_like_rows(table: Table) -> Iterator[Any]:
    """Yield the structures that find a row by its key, such as the primary key's index with all its columns.

    A table whose columns are all in its key has none: nothing in it can be changed.
    """
    key = {column.name for column in table.primary_key}
    others = {column.name for column in table.columns} - key
    for index in _secondary_indexes(table) if others else ():
        names = _names_in(index)
        if others.issubset(names) and names[0] in key:
            yield index


def is_in_index(table: Table, unread: Iterable[Any]) -> bool:
    """Return whether an index has all columns that a SELECT of rows of this table reads.

    :param unread: its columns that the SELECT does not read.
    """
    # By name: unread columns may be those of an alias.
    not_read = {column.name for column in (*unread, *table.primary_key)}
    read = {column.name for column in table.columns} - not_read
    return any(map(read.issubset, map(_names_in, _secondary_indexes(table))))


def _names_in(index: Any) -> list[str]:
    """Return the names of the index's columns, INCLUDEd ones last."""
    included = [
        column
        for key, given in index.dialect_kwargs.items()
        if key.endswith("_include")
        for column in given or ()
    ]
    return [getattr(column, "name", column) for column in (*index.columns, *included)]


def _secondary_indexes(table: Table) -> Iterator[Any]:
    """Yield the indexes other than the primary key, which contains the rows."""
    yield from table.indexes
    for constraint in table.constraints:
        if isinstance(constraint, (UniqueConstraint, ForeignKeyConstraint)):
            yield constraint
