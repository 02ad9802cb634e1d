"""Many documents by their primary keys, each once, in ascending key order: get_entities()."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.interfaces import ORMOption

from ..documents import document_key, identity_of, own_table, root_of, spans_rows
from ..lock_info import Identity
from ..options import LockOptions, is_row_lock
from ..statements import (
    chunks,
    lock_by_keys,
    parameters_by_keys,
    relationships_with_options,
    run_within,
    select_by_keys,
)
from ..transaction import TransactionConnection
from .autoflush import without_autoflush
from .context import LockContext
from .load_parts import load_again
from .refresh import forget_vanished, make_stale, refuse_unsaved

T = TypeVar("T")
_PARAMETERS_OF_AN_OR = 5_000  # of composite keys: PostgreSQL plans 16,000 for 6 s, 2,500 for 0.4 s


def identities_of(mapper: Mapper[Any], idents: Iterable[Any]) -> list[Identity]:
    """The primary keys, each once, in ascending order.

    :raises TypeError: not a collection of keys.
    :raises ValueError: a key of the wrong shape, or keys that have no order among them.
    """
    if isinstance(idents, (str, bytes, Mapping)) or not isinstance(idents, Iterable):
        raise TypeError(f"a list of primary keys is needed, not {idents!r}")
    identities = dict.fromkeys(identity_of(mapper, ident) for ident in idents)
    try:
        return sorted(identities)
    except TypeError as error:
        raise ValueError(f"the keys cannot be put in order: {error}") from error


def single_key(identities: Sequence[Identity]) -> Any:
    """The key of the only document, for the words of an error; None where there are more."""
    if len(identities) != 1:
        return None
    (identity,) = identities
    return identity[0] if len(identity) == 1 else identity


def read_many(
    session: Session,
    mapper: Mapper[T],
    identities: Sequence[Identity],
    lock: LockOptions,
    options: Sequence[ORMOption],
) -> list[T]:
    """Read them without a lock, a dirty read where NoLock was asked for."""
    found: list[T] = []
    for chunk in chunks(identities):
        found += _select(session, select_by_keys(mapper, lock, chunk), chunk, options)
    return found


def read_held(
    session: Session,
    mapper: Mapper[T],
    identities: Sequence[Identity],
    options: Sequence[ORMOption],
) -> list[T]:
    """Documents that are held already: the objects as they are, if nothing has to be loaded."""
    found, unknown = [], []
    for identity in identities:
        known = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
        if isinstance(known, mapper.class_) and not options:
            found.append(known)
        else:
            unknown.append(identity)
    return found + read_many(session, mapper, unknown, LockOptions.None_, options)


def lock_and_read_many(
    session: Session,
    books: LockContext,
    mapper: Mapper[T],
    identities: Sequence[Identity],
    lock: LockOptions,
    seconds: float | None,
    options: Sequence[ORMOption],
    *,
    recheck: bool,
) -> list[T]:
    """Lock the rows in the order of their keys, then record them; missing ones are left out."""
    root = root_of(mapper)
    participant = books.participants.prepare({"mapper": mapper}, mapper, lock, seconds)
    unreadable = make_stale(session, root, frozenset(identities), books.ledger.held)
    asked = (session, participant, mapper, lock, seconds, options)
    strategy = participant.strategy
    with without_autoflush(session), books.waiting(participant, lock, seconds):
        found = list(_locked_rows(*asked, identities))
        missing = _missing(mapper, found, identities)
        skips = LockOptions.SkipLocked in lock
        if missing and strategy.retries_missing_rows and not skips:
            found += _locked_rows(*asked, missing)
            found.sort(key=mapper.primary_key_from_instance)
            missing = _missing(mapper, found, missing)
        load_again(session, unreadable)
    actual = [tuple(mapper.primary_key_from_instance(instance)) for instance in found]
    # "1" for 1: the objects were not those that were made stale.  They may be held, or raise
    # for an upgrade.
    odd = {
        identity
        for identity in set(actual).difference(identities)
        if not books.ledger.covers(document_key(mapper, identity), lock)
    }
    if recheck or odd:
        refuse_unsaved(session, root, {*identities, *odd}, ask=True)
    if odd:
        unreadable = make_stale(session, root, odd, books.ledger.held)
        with without_autoflush(session):
            read_many(session, mapper, sorted(odd), LockOptions.None_, options)
            load_again(session, unreadable)
    for identity in actual:
        books.ledger.record(document_key(mapper, identity), lock)
    for identity in () if skips else missing:
        forget_vanished(session, mapper, identity)
    return found


def _missing(
    mapper: Mapper[T], found: Iterable[T], identities: Sequence[Identity]
) -> list[Identity]:
    there = {tuple(mapper.primary_key_from_instance(instance)) for instance in found}
    return [identity for identity in identities if identity not in there]


def _locked_rows(
    session: Session,
    participant: TransactionConnection,
    mapper: Mapper[T],
    lock: LockOptions,
    seconds: float | None,
    options: Sequence[ORMOption],
    identities: Sequence[Identity],
) -> Iterator[T]:
    strategy, row_lock = participant.strategy, participant.row_lock(lock)
    where = {"bind_arguments": {"bind": participant.connection}}
    chosen = relationships_with_options(options) if options else frozenset()
    locks_rows = is_row_lock(row_lock)
    if locks_rows:
        strategy.check_table(participant.connection, own_table(mapper))
    limit = strategy.max_parameters
    if len(mapper.primary_key) > 1:
        limit = min(limit, _PARAMETERS_OF_AN_OR)

    def wait(
        statement_for: Callable[[LockOptions], Select[Any]], run: Callable[[Select[Any]], list[Any]]
    ) -> list[Any]:
        return run_within(seconds, strategy, row_lock, statement_for, run)

    def read(keys: Sequence[Identity], lock: LockOptions) -> list[T]:
        statement = select_by_keys(mapper, lock, keys, chosen)
        return _select(session, statement, keys, options, **where)

    def lock_and_read(keys: Sequence[Identity]) -> list[T]:
        return wait(
            lambda lock: select_by_keys(mapper, lock, keys, chosen),
            lambda statement: _select(session, statement, keys, options, **where),
        )

    def lock_then_read(keys: Sequence[Identity]) -> list[T]:
        parameters = parameters_by_keys(keys)
        rows = wait(
            lambda lock: lock_by_keys(mapper, lock, keys),
            lambda statement: list(session.execute(statement, parameters, **where)),
        )
        locked = [tuple(row)[: len(mapper.primary_key)] for row in rows]
        return read(locked, LockOptions.None_) if locked else []

    two_steps = spans_rows(mapper, undeferred=bool(options))
    for chunk in chunks(identities, limit):
        if not locks_rows:
            yield from read(chunk, row_lock)
        else:
            yield from (lock_then_read if two_steps else lock_and_read)(chunk)


def _select(
    session: Session,
    statement: Select[Any],
    keys: Sequence[Identity],
    options: Sequence[ORMOption],
    **where: Any,
) -> list[Any]:
    if options:
        statement = statement.options(*options)
    return list(session.scalars(statement, parameters_by_keys(keys), **where).unique())
