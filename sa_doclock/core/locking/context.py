"""LockContext: all that one session keeps for its locks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine

from ..documents import mapper_cache
from ..loading import LoadedDocuments, LoadedHeaders
from ..transaction import TransactionState, ranks_of
from .wait_policy import WaitPolicy


@dataclass(frozen=True, eq=False, slots=True)
class SessionOptions:
    """The options of :class:`LockingSession`, checked once and shared by all sessions that have them."""

    ranks: Mapping[type[Any], int]
    wait: WaitPolicy


@mapper_cache
def session_options(
    lock_timeout: float | None, lock_order: tuple[type[Any], ...]
) -> SessionOptions:
    """Return the options of a session.

    For the errors see :class:`LockingSession`.
    """
    return SessionOptions(ranks_of(lock_order), WaitPolicy(lock_timeout))


class LockContext(TransactionState):
    """The transaction of one session, and what its locks and writes need beside it."""

    options: SessionOptions

    binds: tuple[Engine | Connection, ...] = ()
    """The values of ``Session(binds=...)``, of ``bind_mapper()`` and of ``bind_table()``."""

    added = False
    """True if an object was ever added to the session."""

    sends_own = False
    """True while a SELECT of ours is executed, whose listeners SQLAlchemy calls one after the other."""

    adopted_headers: LoadedHeaders | None = None
    """The headers that a ``with_for_update()`` of the program reads again just now."""

    loaded: LoadedDocuments | None = None
    """The objects of documents in the session, from the first lock on that finds some."""

    def loaded_documents(self) -> LoadedDocuments:
        """Return the same, made where it is not there yet."""
        if self.loaded is None:
            self.loaded = LoadedDocuments(self.session(), self.ledger)
        return self.loaded

    def forget_objects(self) -> None:
        """Forget what is known of the objects in the session, which has none any more."""
        self.loaded = None
