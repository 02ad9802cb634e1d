"""The lock timeout of a session, for locks that are given none of their own."""

from __future__ import annotations

from functools import lru_cache

from ..options import LockOptions, LockTimeout, check_lock, check_wait, may_queue


class WaitPolicy:
    """The lock_timeout of a session.

    :param lock_timeout: for every lock that may have to wait and is given none of its own.
    :raises TypeError: it is not a number of seconds, a timedelta or None.
    :raises ValueError: it is negative, NaN or infinite.
    """

    def __init__(self, lock_timeout: LockTimeout = None) -> None:
        check_wait(LockOptions.ForUpdate, lock_timeout)
        self._default = lock_timeout

    def resolve(
        self, lock: LockOptions, lock_timeout: LockTimeout
    ) -> tuple[LockOptions, float | None]:
        """Return the lock, and the seconds to wait for it, both checked."""
        try:
            return _resolve(self._default, lock, lock_timeout)
        except TypeError:  # which says better what is wrong with what has no hash
            return _resolve.__wrapped__(self._default, lock, lock_timeout)


# Threads: a cache of a function that has one answer.
@lru_cache(maxsize=16, typed=True)  # with types, since True is no time, and equals 1
def _resolve(
    default: LockTimeout, lock: LockOptions, lock_timeout: LockTimeout
) -> tuple[LockOptions, float | None]:
    lock = check_lock(lock)
    if lock_timeout is None and may_queue(lock):
        lock_timeout = default
    return check_wait(lock, lock_timeout)
