"""LockOptions, their valid combinations, and the lock timeout."""

from __future__ import annotations

import enum
import functools
import math
from datetime import timedelta
from typing import Final, Literal


class LockOptions(enum.Flag):
    """The lock with which a document is read: one base lock, with at most one modifier.

    docs/lock-options.md describes each lock on each database.
    """

    None_ = 0
    """A plain read, as by ``Session.get()``."""

    NoLock = 1
    """A dirty read: ``WITH (NOLOCK)`` on SQL Server, a plain read elsewhere."""

    SharedRead = 2
    """Readers share the lock; writers wait, so no reader sees a document in mid-update."""

    ForUpdate = 4
    """Exclusive, until the transaction ends."""

    NoWait = 8
    """Modifier of ForUpdate and SharedRead: fail at once instead of waiting."""

    SkipLocked = 16
    """Modifier of ForUpdate and SharedRead, for sets: leave out rows that others hold."""

    SnapshotRead = 32
    """A consistent read that neither waits nor blocks; it runs on read replicas too."""

    NoKey = 64
    """Modifier of ForUpdate for a holder that does not change or delete the key: others may insert rows
    that refer to it. ``FOR NO KEY UPDATE`` on PostgreSQL, plain ForUpdate elsewhere."""

    # Members are singletons; Flag's own hash is a Python function that slows down each lock.
    __hash__ = object.__hash__


BASES: Final = (
    LockOptions.NoLock,
    LockOptions.SharedRead,
    LockOptions.ForUpdate,
    LockOptions.SnapshotRead,
)
MODIFIERS: Final = (LockOptions.NoWait, LockOptions.SkipLocked)
"""The modifiers that decide what happens if another transaction holds the row."""
QUEUEING: Final = (LockOptions.SharedRead, LockOptions.ForUpdate)
"""The locks that may wait for another holder."""

LockTimeout = float | timedelta | None

GuardMode = Literal["raise", "warn", "off"]
Priority = Literal["interactive", "batch"]

BATCH_WAIT: Final = 60.0
"""Seconds for which a batch session without a lock_timeout tries: no server ends its wait."""

# Longer limits are cut to this one, which every server accepts (PostgreSQL: 2**31 - 1 ms).
LONGEST_WAIT: Final = 7 * 24 * 3600.0

_IN_SQL = {
    LockOptions.None_: "plain read",
    LockOptions.NoLock: "NOLOCK",
    LockOptions.SharedRead: "SHARED READ",
    LockOptions.ForUpdate: "FOR UPDATE",
    LockOptions.NoWait: "NOWAIT",
    LockOptions.SkipLocked: "SKIP LOCKED",
    LockOptions.SnapshotRead: "SNAPSHOT READ",
}


# Threads: cached pure functions.
@functools.cache
def base_of(lock: LockOptions) -> LockOptions:
    """Return the lock without its modifiers."""
    return lock & ~(LockOptions.NoWait | LockOptions.SkipLocked | LockOptions.NoKey)


@functools.cache
def held_lock(lock: LockOptions) -> LockOptions:
    """Return the lock as the transaction then holds it: without NoWait and SkipLocked."""
    return lock & ~(LockOptions.NoWait | LockOptions.SkipLocked)


@functools.cache
def without_no_key(lock: LockOptions) -> LockOptions:
    """Return the lock without NoKey, which table hints and suffixes do not have."""
    return lock & ~LockOptions.NoKey


@functools.cache
def is_row_lock(lock: LockOptions) -> bool:
    """Return whether the lock is on rows, so that it may conflict with another holder."""
    return base_of(lock) in QUEUEING


@functools.cache
def may_queue(lock: LockOptions) -> bool:
    """Return whether the lock waits for another holder, and neither fails nor skips the row."""
    return is_row_lock(lock) and lock is held_lock(lock)


def lock_label(lock: LockOptions) -> str:
    """Return the lock in the words of an error message: ``FOR UPDATE NOWAIT``."""
    base = "FOR NO KEY UPDATE" if LockOptions.NoKey in lock else _IN_SQL[base_of(lock)]
    return " ".join([base, *(_IN_SQL[m] for m in MODIFIERS if m in lock)])


def check_lock(lock: LockOptions) -> LockOptions:
    """Return the lock if its members can be combined.

    :raises TypeError: not a LockOptions.
    :raises ValueError: two members collide; the message names both.
    """
    if not isinstance(lock, LockOptions):
        raise TypeError(f"lock must be a LockOptions member, not {lock!r}")
    return _check_members(lock)


@functools.cache
def _check_members(lock: LockOptions) -> LockOptions:
    bases, modifiers = _members(BASES, lock) or [LockOptions.None_], _members(MODIFIERS, lock)
    if len(bases) > 1:
        raise _collision(bases[0], bases[1], "a document has one lock at a time")
    if len(modifiers) > 1:
        raise _collision(
            modifiers[0], modifiers[1], "a lock either fails at once or leaves rows out"
        )
    if modifiers and bases[0] not in QUEUEING:
        raise _collision(modifiers[0], bases[0], "it modifies only ForUpdate and SharedRead")
    if LockOptions.NoKey in lock and bases[0] is not LockOptions.ForUpdate:
        raise _collision(LockOptions.NoKey, bases[0], "it modifies only ForUpdate")
    return lock


def _members(of: tuple[LockOptions, ...], lock: LockOptions) -> list[LockOptions]:
    return [member for member in of if member in lock]


def _collision(member: LockOptions, other: LockOptions, why: str) -> ValueError:
    return ValueError(f"LockOptions.{member.name} and LockOptions.{other.name} collide: {why}")


def check_wait(lock: LockOptions, lock_timeout: LockTimeout) -> tuple[LockOptions, float | None]:
    """Return the lock and the seconds to wait for it; a time-out of 0 becomes NoWait.

    :raises TypeError: not a number of seconds, a timedelta or None.
    :raises ValueError: negative, NaN or infinite; given with a lock that never waits; positive, with
        NoWait.
    """
    if lock_timeout is None:
        return lock, None
    seconds = min(check_time("lock_timeout", lock_timeout), LONGEST_WAIT)
    if not is_row_lock(lock):
        raise ValueError(
            f"lock_timeout={lock_timeout!r} has no meaning with {lock}: this read never waits"
        )
    if seconds == 0 and LockOptions.SkipLocked in lock:
        raise ValueError("lock_timeout=0 is NoWait, which collides with LockOptions.SkipLocked")
    if seconds == 0:
        return lock | LockOptions.NoWait, None
    if LockOptions.NoWait in lock:
        raise ValueError(f"lock_timeout={lock_timeout!r} and LockOptions.NoWait collide")
    # SkipLocked skips rows, but may wait for a lock of a table, a page or the table's definition.
    return lock, seconds


def check_priority(priority: object) -> None:
    """:raises ValueError: the priority is unknown."""
    if priority not in ("interactive", "batch"):
        raise ValueError(f'priority must be "interactive" or "batch", not {priority!r}')


def check_hold_limit(hold_limit: LockTimeout) -> float | None:
    """Return the seconds for which a transaction may hold its locks; None: no limit.

    :raises TypeError, ValueError: as for ``lock_timeout``; also for 0, within which no lock can be
        held.
    """
    seconds = check_seconds("hold_limit", hold_limit)
    if seconds == 0:
        raise ValueError("hold_limit must be more than 0 seconds: no lock could be held")
    return seconds


def check_seconds(name: str, value: LockTimeout) -> float | None:
    """Return the time of the option ``name`` in seconds; None if it is None.

    :raises TypeError: not a number of seconds, a timedelta or None.
    :raises ValueError: negative, NaN or infinite.
    """
    return None if value is None else min(check_time(name, value), LONGEST_WAIT)


_LONGEST_TIME: Final = timedelta.max.total_seconds()


def check_time(name: str, value: object) -> float:
    """Return the time of the option ``name`` in seconds, however long.

    :raises TypeError: neither a number of seconds nor a timedelta.
    :raises ValueError: negative, NaN or infinite.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be seconds, a timedelta or None, not {value!r}")
    if not 0 <= value < math.inf:  # NaN is neither
        raise ValueError(f"{name} must be zero or more seconds, not {value!r}")
    return float(min(value, _LONGEST_TIME))


def check_positive(name: str, value: object) -> int:
    """Return a whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, not {value!r}")
    return value


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, rounded up: never 0 for a positive time."""
    return math.ceil(seconds * 1000)
