"""The options of a LockingSession that the core itself needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .documents import mapper_cache
from .ledger import ranks_of
from .wait_policy import WaitPolicy


@dataclass(frozen=True, eq=False, slots=True)
class SessionOptions:
    """The options of :class:`LockingSession`, checked once and shared by all sessions that have them.

    :ivar ranks: the declared order of locking.
    :ivar wait: the lock timeout.
    :ivar adopts_for_update: ``with_for_update()`` is a lock of the session.
    """

    ranks: Mapping[type[Any], int]
    wait: WaitPolicy
    adopts_for_update: bool = True


@mapper_cache
def session_options(lock_order: tuple[type[Any], ...]) -> SessionOptions:
    """Return the options of a session with this order of locking, and else without any.

    For the errors see :class:`LockingSession`.
    """
    return SessionOptions(ranks_of(lock_order), WaitPolicy())
