"""The options of a LockingSession that the core needs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..options import LockOptions, LockTimeout, check_lock, check_wait, may_queue
from .documents import mapper_cache, mapper_of, root_of


class SessionOptions:
    """The options of :class:`LockingSession`, checked once and shared by all sessions with equal ones.

    :ivar ranks: the declared lock order: the place of each root class in it.
    :ivar lock_timeout: for every lock that may wait and has no limit of its own.
    :raises TypeError: ``lock_timeout`` is not a number of seconds, a timedelta or None.
    :raises ValueError: it is negative, NaN or infinite.
    """

    __slots__ = "lock_timeout", "ranks"

    def __init__(self, ranks: Mapping[type[Any], int], lock_timeout: LockTimeout = None) -> None:
        check_wait(LockOptions.ForUpdate, lock_timeout)
        self.ranks, self.lock_timeout = ranks, lock_timeout

    def resolve(
        self, lock: LockOptions, lock_timeout: LockTimeout
    ) -> tuple[LockOptions, float | None]:
        """Return the lock, and the seconds to wait for it, both checked."""
        try:
            return _resolve(self.lock_timeout, lock, lock_timeout)
        except TypeError:  # its message explains an unhashable value better
            return _resolve.__wrapped__(self.lock_timeout, lock, lock_timeout)


# Threads: a cached pure function.
@lru_cache(maxsize=16, typed=True)  # typed, because True is no time, and equals 1
def _resolve(
    default: LockTimeout, lock: LockOptions, lock_timeout: LockTimeout
) -> tuple[LockOptions, float | None]:
    lock = check_lock(lock)
    if lock_timeout is None and may_queue(lock):
        lock_timeout = default
    return check_wait(lock, lock_timeout)


@mapper_cache
def session_options(lock_order: tuple[Any, ...]) -> SessionOptions:
    """Return the options of a session with this lock order, and no others.

    :raises TypeError: one of them is not a mapped class.
    :raises ValueError: a class, or two of one hierarchy, occur twice.
    """
    ranks: dict[type[Any], int] = {}
    for rank, entity in enumerate(lock_order):
        root = root_of(mapper_of(entity)).class_
        if root in ranks:
            raise ValueError(f"lock_order names {root.__name__} twice, or also a subclass of it")
        ranks[root] = rank
    return SessionOptions(ranks)
