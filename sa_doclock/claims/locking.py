"""Rows locked by their keys, and the conditions looked at again under the lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, inspect

from ..dialects import product_of, strategy_for
from ..documents import document_key, own_table, root_of
from ..errors import DocLockError
from ..locking import LockContext, single_key, without_autoflush
from ..options import LockOptions, is_row_lock
from ..session import LockingSession, books_of
from ..statements import lock_by_keys, parameters_by_keys, run_within
from ..transaction import TransactionConnection, add_document
from .query import ClaimQuery, Identity


def serialises(session: LockingSession, claimable: ClaimQuery) -> bool:
    """Whether the database has no row locks, and the lock is the transaction's."""
    strategy = strategy_for(session.get_bind(mapper=claimable.mapper))
    return not is_row_lock(strategy.row_lock(LockOptions.ForUpdate, None))


def lock_matching(
    session: LockingSession,
    claimable: ClaimQuery,
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
    lock, seconds = books.patience.of(lock, seconds)  # where it queues, the session's own limit
    books.check()
    ident = single_key(identities)
    try:
        found = books.take(
            entity,
            ident,
            lock,
            seconds,
            lambda lock, seconds: _lock(session, books, claimable, identities, lock, seconds),
            keys=identities,
        )
    except DocLockError as error:
        bind = session.get_bind(mapper=claimable.mapper)
        add_document(error, entity, ident, lock, product_of(bind.dialect))
        raise
    return found


def _lock(
    session: LockingSession,
    books: LockContext,
    claimable: ClaimQuery,
    identities: Sequence[Identity],
    lock: LockOptions,
    seconds: float | None,
) -> dict[Identity, Any]:
    mapper = claimable.mapper
    participant = books.participants.prepare({"mapper": mapper}, mapper, lock, seconds)
    with without_autoflush(session), books.waiting(participant, lock, seconds):
        found = _locked(session, participant, claimable, identities, lock, seconds)
    rows = {tuple(inspect(row).identity): row for row in found}
    for identity in rows:
        books.ledger.record(document_key(mapper, identity), lock)
    return rows


def _locked(
    session: LockingSession,
    participant: TransactionConnection,
    claimable: ClaimQuery,
    identities: Sequence[Identity],
    lock: LockOptions,
    seconds: float | None,
) -> Sequence[Any]:
    strategy, connection = participant.strategy, participant.connection
    row_lock = participant.row_lock(lock)
    where = {"bind_arguments": {"bind": connection}}

    def read(statement: Select[Any]) -> Sequence[Any]:
        parameters = claimable.parameters(identities)
        return session.scalars(statement, parameters, **where).unique().all()

    if is_row_lock(row_lock):
        strategy.check_table(connection, own_table(claimable.mapper))
        asked = (seconds, strategy, row_lock)
        if claimable.in_one_statement:
            return run_within(*asked, lambda lock: claimable.locking(identities, lock), read)
        root = root_of(claimable.mapper)
        parameters = parameters_by_keys(identities)
        rows = run_within(
            *asked,
            lambda lock: lock_by_keys(root, lock, identities),
            lambda statement: session.execute(statement, parameters, **where).all(),
        )
        identities = [tuple(row)[: len(root.primary_key)] for row in rows]
    return read(claimable.again(identities)) if identities else ()
