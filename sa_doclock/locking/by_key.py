"""One document by its primary key: what get_entity() reads, with the lock and without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.interfaces import ORMOption

from ..dialects import hints_of
from ..documents import document_key, own_table, root_of, spans_rows
from ..lock_info import Identity
from ..options import LockOptions, is_row_lock
from ..statements import (
    key_names,
    lock_by_key,
    relationships_with_options,
    run_within,
    select_by_key,
)
from ..transaction import TransactionConnection
from .autoflush import without_autoflush
from .context import LockContext
from .load_parts import load_again
from .refresh import forget_vanished, make_stale, refuse_unsaved

T = TypeVar("T")
_NOTHING: Final[frozenset[str]] = frozenset()


def read(
    session: Session,
    mapper: Mapper[T],
    identity: Identity,
    lock: LockOptions,
    options: Sequence[ORMOption],
) -> T | None:
    """A plain read, as ``Session.get()``; a dirty one where the database has such."""
    if lock is LockOptions.NoLock and lock in hints_of(session.get_bind(mapper)):
        with without_autoflush(session):
            return _select(session, select_by_key(mapper, lock), mapper, identity, options)
    return session.get(mapper.class_, identity, options=options)


def read_again(
    session: Session, mapper: Mapper[T], identity: Identity, options: Sequence[ORMOption]
) -> T | None:
    """A document that is held already: the object as it is, if nothing has to be loaded."""
    known = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    if isinstance(known, mapper.class_) and not options:
        return known
    plain = select_by_key(mapper, LockOptions.None_)
    return _select(session, plain, mapper, identity, options)


def lock_and_read(
    session: Session,
    books: LockContext,
    mapper: Mapper[T],
    identity: Identity,
    lock: LockOptions,
    seconds: float | None,
    options: Sequence[ORMOption],
    *,
    recheck: bool,
) -> T | None:
    """Lock the row, then record it; None, and nothing locked, where there is no such row.

    :param recheck: whether pending changes have to be looked for once more, under the lock.
    """
    participant = books.participants.prepare({"mapper": mapper}, mapper, lock, seconds)
    unreadable = make_stale(session, root_of(mapper), (identity,), books.ledger.held)
    asked = (session, participant, mapper, identity, lock, seconds, options)
    with without_autoflush(session), books.waiting(participant, lock, seconds):
        found = _locked_row(*asked)
        if found is None and participant.strategy.retries_missing_rows:
            found = _locked_row(*asked)
        load_again(session, unreadable)
    if found is None:
        forget_vanished(session, mapper, identity)
        return None
    key = instance_state(found).key
    assert key is not None  # it was loaded
    actual: Identity = key[1]
    # "1" for 1: the object was not the one that was made stale.  It may be held, or raise for
    # an upgrade.
    odd = actual != identity and not books.ledger.covers(document_key(mapper, actual), lock)
    if recheck or odd:
        refuse_unsaved(session, root_of(mapper), (actual,), ask=True)
    if odd:
        unreadable = make_stale(session, root_of(mapper), (actual,), books.ledger.held)
        plain = select_by_key(mapper, LockOptions.None_)
        with without_autoflush(session):
            _select(session, plain, mapper, actual, options)
            load_again(session, unreadable)
    books.ledger.record(document_key(mapper, actual), lock)
    return found


def _locked_row(
    session: Session,
    participant: TransactionConnection,
    mapper: Mapper[T],
    identity: Identity,
    lock: LockOptions,
    seconds: float | None,
    options: Sequence[ORMOption],
) -> T | None:
    strategy, row_lock = participant.strategy, participant.row_lock(lock)
    where = {"bind_arguments": {"bind": participant.connection}}
    chosen = relationships_with_options(options) if options else _NOTHING
    if not is_row_lock(row_lock):  # the lock is the transaction's
        statement = select_by_key(mapper, lock, chosen)
        return _select(session, statement, mapper, identity, options, **where)
    strategy.check_table(participant.connection, own_table(mapper))
    asked = (seconds, strategy, row_lock)
    if not spans_rows(mapper, undeferred=bool(options)):
        if seconds is None:  # and a limit that ends a wait for one row needs no second look
            statement = select_by_key(mapper, row_lock, chosen)
            return _select(session, statement, mapper, identity, options, **where)
        return run_within(
            *asked,
            lambda row_lock: select_by_key(mapper, row_lock, chosen),
            lambda statement: _select(session, statement, mapper, identity, options, **where),
        )
    parameters = _parameters(mapper, identity)
    locked = run_within(
        *asked,
        lambda row_lock: lock_by_key(mapper, row_lock),
        lambda statement: session.execute(statement, parameters, **where).first(),
    )
    if locked is None:
        return None
    plain = select_by_key(mapper, LockOptions.None_)
    return _select(session, plain, mapper, identity, options, **where)


def _select(
    session: Session,
    statement: Select[tuple[T]],
    mapper: Mapper[T],
    identity: Identity,
    options: Sequence[ORMOption],
    **where: Any,
) -> T | None:
    if options:
        statement = statement.options(*options)
    return session.scalars(statement, _parameters(mapper, identity), **where).first()


def _parameters(mapper: Mapper[Any], identity: Identity) -> dict[str, Any]:
    return dict(zip(key_names(mapper), identity, strict=True))
