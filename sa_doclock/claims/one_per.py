"""claim_each(one_per=): of the rows with the same value one is claimed at a time, in their order.

A value is a named lock, taken in the claim's transaction before its row.  Under it the first of its
rows is looked for, and locked.  Another worker finds the name taken, and goes on with other values;
so nobody waits, and nothing is held but what is worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Select

from ..core.documents import own_table, root_of
from ..core.lock_info import Identity
from ..errors import CheckedOut, LockFailed, LockNotAvailable
from ..features.named_locks import folded_key
from ..session import LockingSession
from .each import Claims
from .locking import SKIP
from .query import ClaimQuery
from .transaction import ClaimTransaction

T = TypeVar("T")


class Groups:
    """The values of the candidates, and the rows of each that have come up in this call."""

    def __init__(self, query: ClaimQuery) -> None:
        self._query = query
        self._values: dict[Identity, tuple[Any, ...]] = {}
        self._came_up: dict[tuple[Any, ...], set[Identity]] = {}
        self._claimed: set[Identity] = set()  # of all values: a row may move to another value
        self._busy: dict[tuple[Any, ...], int] = {}

    def add(self, rows: Sequence[Sequence[Any]]) -> list[Identity]:
        """Note the values of these rows, and return their keys."""
        split = [self._query.split(row) for row in rows]
        self._values.update(split)
        return [key for key, _ in split]

    def value_of(self, key: Identity) -> tuple[Any, ...] | None:
        """Return the value of a candidate; None where it has none, so that nothing limits it."""
        value = self._values[key]
        return None if None in value else value

    def is_claimed(self, key: Identity) -> bool:
        """Return whether the row has been claimed in this call."""
        return key in self._claimed

    def note_claimed(self, key: Identity, value: tuple[Any, ...]) -> None:
        """Note that the row has come up, and does not come up again."""
        self._values.setdefault(key, value)
        self._came_up.setdefault(value, set()).add(key)
        self._claimed.add(key)

    def note_busy(self, value: tuple[Any, ...], number: int) -> None:
        """Note that another worker has this value, in the pass with this number."""
        self._busy[value] = number

    def is_busy(self, key: Identity, number: int) -> bool:
        """Return whether another worker had the value of this row in this pass."""
        return self._busy.get(self._values[key]) == number

    def lock(self, session: LockingSession, value: tuple[Any, ...], seconds: float | None) -> None:
        """Take the named lock of a value.  :raises LockNotAvailable: another has it."""
        mapper = self._query.mapper
        columns = ", ".join(map(_name, self._query.one_per))
        key = f"one per {own_table(root_of(mapper)).fullname}: {columns} = {folded_key(value)}"
        session.lock_key(key, lock_timeout=seconds, bind_arguments={"mapper": mapper})

    def first(self, session: LockingSession, value: tuple[Any, ...]) -> Identity | None:
        """Return the first row of the value that matches now and has not come up; None without one."""
        number = len(self._came_up.get(value, ()))
        for size in sorted({1, number + 1, len(self._claimed) + 1}):
            rows = session.execute(self._query.first_of(value, size))
            found = dict.fromkeys(self._query.split(row)[0] for row in rows)
            key = next((key for key in found if key not in self._claimed), None)
            if key is not None or len(found) < size:
                return key
        return None


def _name(column: Any) -> str:
    """Return the name of a column, the same for an alias of its class."""
    mapped = getattr(getattr(column, "property", None), "columns", [column])
    return str(mapped[0])


class GroupedClaims(Claims[T]):
    """The claims of ``claim_each(one_per=)``."""

    def __init__(self, session_factory: Any, statement: Select[Any], **options: Any) -> None:
        if options["batch"] != 1:
            raise ValueError("one_per claims one row in each transaction: leave out batch")
        super().__init__(session_factory, statement, **options)

    def _reader(self) -> Callable[[Select[Any]], Sequence[Identity]]:
        groups, read = Groups(self._query), self._sessions.read
        self._groups = groups
        return lambda statement: groups.add(read(statement))

    def _take_keys(self, count: int) -> list[Identity]:
        """Return the next key whose value nobody has, as far as this pass knows."""
        while keys := self._candidates.take(1):
            if not self._groups.is_claimed(keys[0]):
                if not self._groups.is_busy(keys[0], self.report.passes):
                    break
                self._builder.skipped(keys)
        return keys

    def _lock_free(self, keys: Sequence[Identity]) -> ClaimTransaction[T] | None:
        """Lock the first row with the value of this key; return None if there is none, or it is held."""
        value = self._groups.value_of(keys[0])
        if value is None:
            return super()._lock_free(keys)
        try:
            claimed = self._open(lambda session: self._lock_first(session, value))
        except (LockNotAvailable, CheckedOut):
            self._groups.note_busy(value, self.report.passes)
            self._builder.skipped(keys)
            return None
        except LockFailed as error:
            self._builder.failed(keys, error)
            if not self._collect:
                raise
            return None
        if claimed is None:
            self._builder.no_longer_matching(keys)
        elif not self._groups.is_claimed(keys[0]):
            self._candidates.requeue(keys)
        return claimed

    def _lock_first(self, session: LockingSession, value: tuple[Any, ...]) -> dict[Identity, T]:
        """Lock the name, then the first row of it that still matches under its lock.

        :raises LockNotAvailable: another has the name or the row; the next row must not overtake it.
        """
        queues = self.report.serialised or not self._skips
        self._groups.lock(session, value, self._seconds if queues else 0)
        tried: Identity | None = None
        while (first := self._groups.first(session, value)) is not None:
            if first == tried:
                raise LockNotAvailable("another transaction holds the first row; try again later")
            rows = self._lock_rows(session, [first], self._lock if queues else SKIP)
            if rows:
                self._groups.note_claimed(first, value)
                return rows
            tried = first
        return {}
