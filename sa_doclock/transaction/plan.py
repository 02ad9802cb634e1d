"""The plan of a lock: what does not change between two calls for the same class and engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table
from sqlalchemy.orm import Mapper

from ..dialects.base import LockStrategy
from ..documents import mapper_cache, own_table
from ..options import LockOptions, is_row_lock


@dataclass(frozen=True, slots=True)
class LockPlan:
    """The plan of one kind of lock on rows of one class, at one engine.

    :ivar level: the isolation level of a transaction that is opened for it; None: any.
    :ivar row_lock: what the SELECT must carry at this level.
    :ivar locks_rows: whether that is a lock on rows; otherwise the transaction is the lock.
    :ivar table: whose rows are locked; None for a named lock.
    """

    strategy: LockStrategy
    lock: LockOptions
    level: str | None
    row_lock: LockOptions
    locks_rows: bool
    table: Table | None


@mapper_cache
def plan_of(mapper: Mapper[Any] | None, lock: LockOptions, strategy: LockStrategy) -> LockPlan:
    """Return the plan, made once for each class, lock and engine.

    :param mapper: None for a named lock.
    :raises LockNotSupported: this database cannot give that lock.
    """
    strategy.check_support(lock)
    level = next(iter(strategy.levels_for(lock)), None)
    row_lock = strategy.row_lock(lock, level)
    return LockPlan(
        strategy,
        lock,
        level,
        row_lock,
        is_row_lock(row_lock),
        None if mapper is None else own_table(mapper),
    )
