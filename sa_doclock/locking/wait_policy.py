"""The lock timeout and the priority of a session: a batch never queues, but tries again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, Literal, TypeVar

from sqlalchemy.util import await_only

from ..errors import LockNotAvailable
from ..options import LockOptions, LockTimeout, check_lock, check_wait, may_queue

T = TypeVar("T")

Priority = Literal["interactive", "batch"]

BATCH_WAIT: Final = 60.0
"""Seconds that a batch session tries for a lock without a lock_timeout: no server ends it."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


class WaitPolicy:
    """The lock_timeout and the priority of a session.

    :param lock_timeout: for every lock that may have to wait and is given none of its own.
    :ivar batch: it never queues for a lock, but tries again and again.
    :raises TypeError: lock_timeout is not a number of seconds, a timedelta or None.
    :raises ValueError: it is negative, NaN or infinite; no such priority.
    """

    def __init__(self, lock_timeout: LockTimeout, priority: Priority) -> None:
        if priority not in ("interactive", "batch"):
            raise ValueError(f'priority must be "interactive" or "batch", not {priority!r}')
        check_wait(LockOptions.ForUpdate, lock_timeout)
        self._default = lock_timeout
        self.batch = priority == "batch"
        self.without_timeout = lru_cache(maxsize=64)(partial(self.resolve, lock_timeout=None))
        """The answer of :meth:`resolve` for a lock without a timeout, worked out once for each."""

    def resolve(
        self, lock: LockOptions, lock_timeout: LockTimeout
    ) -> tuple[LockOptions, float | None]:
        """Return the lock, and the seconds to wait for it, both checked."""
        lock = check_lock(lock)
        if lock_timeout is None and may_queue(lock):
            lock_timeout = self._default
            if lock_timeout is None and self.batch:
                lock_timeout = BATCH_WAIT
        return check_wait(lock, lock_timeout)


def retry_without_queueing(
    seconds: float,
    attempt: Callable[[float], T],
    sleep: Callable[[float], None],
) -> T:
    """Return what an attempt returns that was granted its lock at once; pause between attempts.

    :param attempt: is given the seconds that are left, a whole number.
    :raises LockNotAvailable: what the last attempt has met.
    """
    from tenacity import (  # noqa: PLC0415  # only a batch needs it
        RetryCallState,
        Retrying,
        retry_if_exception_type,
        stop_after_delay,
        wait_random_exponential,
    )

    jitter = wait_random_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE)
    started = time.monotonic()

    def left() -> float:
        return max(seconds - (time.monotonic() - started), 0.0)

    def pause_before_next(state: RetryCallState) -> float:
        return min(jitter(state), left())

    retrying = Retrying(
        retry=retry_if_exception_type(LockNotAvailable),
        wait=pause_before_next,
        stop=stop_after_delay(seconds),
        sleep=sleep,
        reraise=True,
    )
    # Whole seconds, so that there are few different statements.  NOWAIT is about rows: a table
    # that somebody alters is waited for.
    return retrying(lambda: attempt(math.ceil(left()) or 1.0))


def pause(seconds: float, *, under_asyncio: bool) -> None:
    """Sleep, and let others run under asyncio, where the session runs in a greenlet."""
    if under_asyncio:
        import asyncio  # noqa: PLC0415  # it is loaded already

        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)
