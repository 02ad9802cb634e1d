"""The time between the two phases of a commit: ``prepare()`` was called, and the locks are held on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sqlalchemy.orm import Session

from ...keys import DocumentKey
from ...options import LockOptions, base_of
from .connection import TransactionConnections


def is_prepared(session: Session, connections: TransactionConnections) -> bool:
    """Return whether the first phase of the commit has ended, and none of the second has begun."""
    between = session.twophase and connections.commits_now()
    return between and all(one.in_transaction() for one in connections.all())


def prepared_locks(
    session: Session, connections: TransactionConnections, held: Mapping[DocumentKey, LockOptions]
) -> Mapping[DocumentKey, LockOptions]:
    """Return those of the locks that all databases keep after the first phase, whatever was written."""
    if not is_prepared(session, connections):
        return MappingProxyType({})
    known = [one.known for one in connections.by_engine.values() if one.known is not None]
    kept = frozenset(LockOptions).intersection(*(one.lifecycle.kept_by_prepare for one in known))
    return MappingProxyType({key: lock for key, lock in held.items() if base_of(lock) in kept})
