"""How long a session waits for its locks, and how a batch session gives way to the others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
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
    """The session's own lock_timeout and priority.

    :param lock_timeout: for every lock that may have to wait and is given none of its own.
    :raises TypeError: lock_timeout is not a number of seconds, a timedelta or None.
    :raises ValueError: it is negative, NaN or infinite; no such priority.
    """

    def __init__(self, lock_timeout: LockTimeout, priority: Priority) -> None:
        if priority not in ("interactive", "batch"):
            raise ValueError(f'priority must be "interactive" or "batch", not {priority!r}')
        check_wait(LockOptions.ForUpdate, lock_timeout)
        self._default = lock_timeout
        self.gives_way = priority == "batch"

    def of(self, lock: LockOptions, lock_timeout: LockTimeout) -> tuple[LockOptions, float | None]:
        """The lock, and the seconds to wait for it, both checked.

        :raises TypeError: not a LockOptions, or not a time.
        :raises ValueError: contradictory, or no time to wait.
        """
        lock = check_lock(lock)
        if may_queue(lock):
            if lock_timeout is None:
                lock_timeout = self._default
            if lock_timeout is None and self.gives_way:
                lock_timeout = BATCH_WAIT
        return check_wait(lock, lock_timeout)

    def take(
        self,
        lock: LockOptions,
        seconds: float | None,
        attempt: Callable[[LockOptions, float | None], T],
        sleep: Callable[[float], None],
    ) -> T:
        """Take the lock: in one attempt that queues, or in many that do not.

        :raises LockNotAvailable: what the last attempt met.
        """
        if not self.gives_way or seconds is None:
            return attempt(lock, seconds)
        from tenacity import (  # noqa: PLC0415  # a batch alone needs it
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

        def wait(state: RetryCallState) -> float:
            return min(jitter(state), left())

        def attempt_once() -> T:
            # NOWAIT is about rows: a table that somebody alters is waited for.  Whole seconds, so
            # that there are few different statements.
            return attempt(lock | LockOptions.NoWait, math.ceil(left()) or 1.0)

        retrying = Retrying(
            retry=retry_if_exception_type(LockNotAvailable),
            wait=wait,
            stop=stop_after_delay(seconds),
            sleep=sleep,
            reraise=True,
        )
        return retrying(attempt_once)


def pause(seconds: float, *, under_asyncio: bool) -> None:
    """Sleep, and let others run under asyncio, where the session runs in a greenlet."""
    if under_asyncio:
        import asyncio  # noqa: PLC0415  # it is loaded already

        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)
