"""claim_each(): the function that begins a loop of claims, and the loop of its one_per."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from sqlalchemy import Select

from ..core.documents import own_table, root_of
from ..errors import CheckedOut, LockFailed, LockNotAvailable
from ..keys import Identity, folded_key
from ..options import LockTimeout
from ..session import LockingSession
from .each import Claims, OnError
from .query import SKIP, ClaimQuery
from .sessions import check_factory
from .transaction import ClaimTransaction

T = TypeVar("T")


class Groups:
    """The values of the candidates, and the rows of each that this call has yielded.

    :ivar claimed: the yielded rows of all values: a row may move to another value.
    :ivar busy: the values that another worker had, with the number of the pass.
    """

    def __init__(self, query: ClaimQuery) -> None:
        self._query = query
        self._values: dict[Identity, tuple[Any, ...]] = {}
        self._came_up: dict[tuple[Any, ...], set[Identity]] = {}
        self.claimed: set[Identity] = set()
        self.busy: dict[tuple[Any, ...], int] = {}

    def add(self, rows: Sequence[Sequence[Any]]) -> list[Identity]:
        """Record the values of these rows, and return their keys."""
        split = [self._query.split(row) for row in rows]
        self._values.update(split)
        return [key for key, _ in split]

    def value_of(self, key: Identity) -> tuple[Any, ...] | None:
        """Return the value of a candidate; None: it has none, and is not limited."""
        value = self._values[key]
        return None if None in value else value

    def note_claimed(self, key: Identity, value: tuple[Any, ...]) -> None:
        """Record that the row was yielded, and is not to be yielded again."""
        self._values.setdefault(key, value)
        self._came_up.setdefault(value, set()).add(key)
        self.claimed.add(key)

    def is_busy(self, key: Identity, number: int) -> bool:
        """Return whether another worker had the value of this row in this pass."""
        return self.busy.get(self._values[key]) == number

    def lock(self, session: LockingSession, value: tuple[Any, ...], seconds: float | None) -> None:
        """Take the named lock of a value.  :raises LockNotAvailable: another has it."""
        mapper = self._query.mapper
        columns = ", ".join(map(_name, self._query.one_per))
        key = f"one per {own_table(root_of(mapper)).fullname}: {columns} = {folded_key(value)}"
        session.lock_key(key, lock_timeout=seconds, bind_arguments={"mapper": mapper})

    def first(self, session: LockingSession, value: tuple[Any, ...]) -> Identity | None:
        """Return the first row of the value that still matches and was not yielded, or None."""
        number = len(self._came_up.get(value, ()))
        for size in sorted({1, number + 1, len(self.claimed) + 1}):
            rows = session.execute(self._query.first_of(value, size))
            found = dict.fromkeys(self._query.split(row)[0] for row in rows)
            key = next((key for key in found if key not in self.claimed), None)
            if key is not None or len(found) < size:
                return key
        return None


def _name(column: Any) -> str:
    mapped = getattr(getattr(column, "property", None), "columns", [column])
    return str(mapped[0])


class GroupedClaims(Claims[T]):
    """The claims of ``claim_each(one_per=)``: of the rows with the same value, one at a time, in order.

    The claim's transaction takes a named lock for the value, then finds and locks the first of its
    rows.  Another worker that finds the name taken continues with other values: no worker waits, and
    only the rows in work are locked.
    """

    def __init__(self, session_factory: Any, statement: Select[Any], **options: Any) -> None:
        if options["batch"] != 1:
            raise ValueError("one_per claims one row in each transaction: leave out batch")
        super().__init__(session_factory, statement, **options)

    def _reader(self) -> Callable[[Select[Any]], Sequence[Identity]]:
        groups, read = Groups(self._query), self._sessions.read
        self._groups = groups
        return lambda statement: groups.add(read(statement))

    def _take_keys(self, count: int) -> list[Identity]:
        """Return the next key whose value is free, as far as this pass knows."""
        while keys := self._candidates.take(1):
            if keys[0] not in self._groups.claimed:
                if not self._groups.is_busy(keys[0], self.report.passes):
                    break
                self._builder.skipped(keys)
        return keys

    def _lock_free(self, keys: Sequence[Identity]) -> ClaimTransaction[T] | None:
        """Lock the first row with the value of this key; return None if it is held or does not exist."""
        value = self._groups.value_of(keys[0])
        if value is None:
            return super()._lock_free(keys)
        try:
            claimed = self._open(lambda session: self._lock_first(session, value))
        except (LockNotAvailable, CheckedOut) as error:
            self._groups.busy[value] = self.report.passes
            self._builder.skipped(keys)
            if isinstance(error, CheckedOut):
                self._candidates.skip(self._sessions.find_taken)
            return None
        except LockFailed as error:
            self._builder.failed(keys, error)
            if not self._collect:
                raise
            return None
        if claimed is None:
            self._builder.no_longer_matching(keys)
        elif keys[0] not in self._groups.claimed:
            self._candidates.requeue(keys)
        return claimed

    def _lock_first(self, session: LockingSession, value: tuple[Any, ...]) -> dict[Identity, T]:
        """Lock the name, then its first row that still matches under the lock.

        :raises LockNotAvailable: another has the name or the row; no later row may overtake it.
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


@overload
def claim_each(
    session_factory: Callable[[], LockingSession],
    statement: Select[tuple[T]],  # SQLAlchemy 2.0
    *,
    limit: int | None = ...,
    order_by: Any = ...,
    lock_timeout: LockTimeout = ...,
    on_error: OnError = ...,
    until_empty: bool = ...,
    batch: int = ...,
    one_per: Any = ...,
    attempts: int = ...,
    sleep: Callable[[float], object] = ...,
) -> Claims[T]: ...


@overload
def claim_each(
    session_factory: Callable[[], LockingSession],
    statement: Select[T],  # SQLAlchemy 2.1
    *,
    limit: int | None = ...,
    order_by: Any = ...,
    lock_timeout: LockTimeout = ...,
    on_error: OnError = ...,
    until_empty: bool = ...,
    batch: int = ...,
    one_per: Any = ...,
    attempts: int = ...,
    sleep: Callable[[float], object] = ...,
) -> Claims[T]: ...


def claim_each(
    session_factory: Callable[[], LockingSession],
    statement: Select[Any],
    *,
    limit: int | None = None,
    order_by: Any = None,
    lock_timeout: LockTimeout = None,
    on_error: OnError = "raise",
    until_empty: bool = False,
    batch: int = 1,
    one_per: Any = None,
    attempts: int = 10,
    sleep: Callable[[float], object] = time.sleep,
) -> Claims[Any]:
    """Return an iterator of claims: each row of the statement goes to one worker alone.

    Use it as ``for claim in claim_each(...):`` with ``with claim as row:`` in the loop.  It reads the keys
    of the rows first, 1,000 at a time, without a lock.  Then it locks each row ForUpdate by its key, in a
    session and transaction of its own, and checks the conditions of the statement again under the lock.
    The end of the block commits; an exception in it rolls back.

    A row is committed at most once, provided that the block changes it so that it no longer matches.
    One call yields a row only once in any case.  docs/claiming.md has the order of the rows, and the work
    that a crash repeats.

    Example::

        jobs = select(Job).where(Job.state == "new")
        for claim in claim_each(Session, jobs):
            with claim as job:
                job.state = "done"

    :param session_factory: makes new :class:`LockingSession` objects, as ``sessionmaker``.
    :param statement: a select of one mapped class or ``aliased()``, with any conditions, joins and loader
        options.  If it reads other tables than that of the class (a join, EXISTS, joined
        inheritance), each claim costs a second statement.
    :param limit: the largest number of claims.
    :param order_by: a column or several, if the statement has no ORDER BY.
    :param lock_timeout: None skips rows that others hold.  Seconds (or a timedelta): wait so long for each
        row, then skip it.  SQLite locks the file: there the wait is for the file, and None waits
        as the connection is configured (5 s).
    :param on_error: ``"raise"`` raises the exceptions of blocks, commits and locks; ``"collect"`` keeps
        them in ``report.failed`` and goes on.
    :param until_empty: after the last candidate look for more, until a pass finds no new one, or
        ``attempts`` passes in a row have claimed none.  Between such passes it sleeps for up to 2 s,
        with full jitter.
    :param batch: the number of rows in a transaction, up to 500, locked by one statement and committed
        together.  Each block has a savepoint, so a block that fails does not undo the others.
    :param one_per: a column or several: of the rows with the same value, one is claimed at a time, in
        order, across all workers.  Rows with NULL are not limited.  Each claim costs a named lock and a
        SELECT.  See docs/claiming.md.
    :param attempts: see ``until_empty``.
    :param sleep: a function that waits for the given seconds.
    :returns: an iterator of :class:`Claim`, with a ``report``.
    :raises TypeError: an argument is not a select, a factory or a number.
    :raises ValueError: not exactly one mapped class, a LIMIT, two orders, an unknown ``on_error``,
        ``one_per`` with a ``batch``.
    :raises LockNotSupported: the rows cannot be locked: DISTINCT, GROUP BY, ``joinedload()``, a view
        (found before the first read).
    :raises LockMisuse: the statement has a lock; or the next claim is requested within a block.
    :raises LockFailed: a deadlock while locking, unless it is collected.
    """
    check_factory(session_factory)
    return claims_of(
        session_factory,
        statement,
        limit=limit,
        order_by=order_by,
        lock_timeout=lock_timeout,
        on_error=on_error,
        until_empty=until_empty,
        batch=batch,
        one_per=one_per,
        attempts=attempts,
        sleep=sleep,
    )


def claims_of(session_factory: Any, statement: Select[Any], **options: Any) -> Claims[Any]:
    """Return the loop that these options of :func:`claim_each` ask for."""
    kind = Claims if options["one_per"] is None else GroupedClaims
    return kind(session_factory, statement, **options)
