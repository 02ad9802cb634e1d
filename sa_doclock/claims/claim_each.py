"""claim_each(): the function that begins a loop of claims."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Select

from ..options import LockTimeout
from ..session import LockingSession
from .each import Claims, OnError
from .one_per import GroupedClaims
from .sessions import check_factory


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
    """Return an iterator of claims: each row of the statement comes up for one worker alone.

    ``for claim in claim_each(...):``, and in it ``with claim as row:``. The keys of the rows are
    read first, 1,000 at a time, without a lock. Then each row is locked ForUpdate by its key, in a
    session and transaction of its own, and the conditions of the statement are checked again under
    the lock. The end of the block commits. An exception in it rolls back.

    A row is committed at most once, as long as the block makes the row match no more, and comes up
    in this call once in any case. docs/claiming.md says what a crash repeats, and in which order
    rows come up.

    :param session_factory: makes new :class:`LockingSession` objects, as ``sessionmaker``.
    :param statement: a select of one mapped class or ``aliased()``, with any conditions, joins
        and loader options. One that reads other rows than the class's own table (a join,
        EXISTS, joined inheritance) costs a second statement a claim.
    :param limit: at most so many claims come up.
    :param order_by: a column, or several: in which order, where the statement does not say it.
    :param lock_timeout: None skips what others hold. Seconds, or a timedelta: queue for each row,
        and skip it then. SQLite locks the file, not rows: there None waits as the connection is
        configured (5 s), and seconds are for the wait for the file.
    :param on_error: ``"collect"`` keeps exceptions of blocks, commits and locks for
        ``report.failed`` and goes on. ``"raise"`` lets them out.
    :param until_empty: look for candidates again after the last one, until a pass finds no new
        one, or ``attempts`` passes in a row have claimed none of those they found. Between such
        passes it sleeps, with full jitter, up to 2 s.
    :param batch: so many rows a transaction, up to 500, locked by one statement and committed
        together. Each block has a savepoint, so that one that fails does not undo the others.
    :param one_per: a column, or several: at most one claim at a time of the rows with the same
        value, in order within it, whoever claims; rows with NULL are not limited. Costs a named
        lock and a SELECT for each claim. docs/claiming.md has the rest.
    :param attempts: see ``until_empty``.
    :param sleep: what waits, given seconds.
    :returns: an iterator of :class:`Claim`, with ``report``.
    :raises TypeError: not a select, a factory, a number.
    :raises ValueError: not exactly one mapped class, a LIMIT, two orders, no such ``on_error``,
        ``one_per`` with a ``batch``.
    :raises LockNotSupported: rows that cannot be locked: DISTINCT, GROUP BY, ``joinedload()``, a
        view (that the database has one of this name is found before the first read).
    :raises LockMisuse: the statement has a lock; the next claim is asked for in a block.
    :raises LockFailed: out of the loop: a deadlock while locking, unless it is collected.
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
