"""Rows locked by their keys, and the conditions looked at again under the lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import inspect

from ..aftermath import name_document
from ..books import Books, books_of
from ..by_keys import alone
from ..dialects import strategy_for
from ..documents import document_key, own_table, root_of
from ..errors import DocLockError
from ..options import LockOptions, is_row_lock
from ..session import LockingSession
from ..statements import lock_by_keys, timed
from ..transactions import Participant
from .claimable import Claimable, Identity


def serialises(session: LockingSession, claimable: Claimable) -> bool:
    """Whether the database has no row locks, and the lock is the transaction's."""
    strategy = strategy_for(session.get_bind(mapper=claimable.mapper))
    return not is_row_lock(strategy.row_lock(LockOptions.ForUpdate, None))


def lock_matching(
    session: LockingSession,
    claimable: Claimable,
    identities: Sequence[Identity],
    lock: LockOptions,
    seconds: float | None,
) -> dict[Identity, Any]:
    """Lock those of these rows that match the statement; in a transaction of their own.

    One statement does both where the statement reads the header's own row alone. Otherwise
    the rows are locked first, in the order of their keys, and read in a second statement: one
    that locks and reads shows the other rows as they were when it began, which may be before
    another worker has committed.

    :raises LockFailed: with ``SkipLocked`` only for a deadlock and the like.
    """
    books, entity = books_of(session), claimable.mapper.class_
    books.check()
    ident = alone(identities)
    try:
        with books.aftermath.of_lock(entity, ident, lock, seconds):
            found = _lock(session, books, claimable, identities, lock, seconds)
    except DocLockError as error:
        participant = strategy_for(session.get_bind(mapper=claimable.mapper))
        name_document(error, entity, ident, lock, participant.name)
        raise
    rows = {tuple(inspect(row).identity): row for row in found}
    for identity in rows:
        books.ledger.record(document_key(claimable.mapper, identity), lock)
    return rows


def _lock(
    session: LockingSession,
    books: Books,
    claimable: Claimable,
    identities: Sequence[Identity],
    lock: LockOptions,
    seconds: float | None,
) -> Sequence[Any]:
    mapper = claimable.mapper
    participant = books.participants.prepare({"mapper": mapper}, mapper, lock, seconds)
    strategy, row_lock = participant.strategy, participant.row_lock(lock)
    where = {"bind_arguments": {"bind": participant.connection}}
    with session.no_autoflush, strategy.waiting(participant.connection, lock, seconds):
        if is_row_lock(row_lock):
            strategy.check_table(participant.connection, own_table(mapper))
            if claimable.in_one_statement:
                statement = timed(strategy, claimable.locking(identities, row_lock), seconds)
                parameters = claimable.parameters(identities)
                return session.scalars(statement, parameters, **where).unique().all()
            identities = _lock_alone(session, participant, claimable, identities, row_lock, seconds)
        if not identities:
            return ()
        statement, parameters = claimable.again(identities), claimable.parameters(identities)
        return session.scalars(statement, parameters, **where).unique().all()


def _lock_alone(
    session: LockingSession,
    participant: Participant,
    claimable: Claimable,
    identities: Sequence[Identity],
    row_lock: LockOptions,
    seconds: float | None,
) -> Sequence[Identity]:
    root = root_of(claimable.mapper)
    statement, parameters = lock_by_keys(root, row_lock, identities)
    where = {"bind_arguments": {"bind": participant.connection}}
    rows = session.execute(timed(participant.strategy, statement, seconds), parameters, **where)
    return [tuple(row)[: len(root.primary_key)] for row in rows]
