"""The plan of a lock: what does not change between two calls for the same class and engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table
from sqlalchemy.orm import Mapper

from ...dialects import known_strategies
from ...dialects.base import LockStrategy
from ...options import LockOptions
from ..documents import clear_with_mappers, own_table


@dataclass(frozen=True, slots=True)
class LockPlan:
    """The plan of one kind of lock on rows of one class, at one engine.

    :ivar level: the isolation level of a transaction that is opened for it; None: any.
    :ivar row_lock: what the SELECT must carry at this level.
    :ivar whole: the SELECT must read all columns of the row; see ``LockStatements.locks_what_is_read``.
    :ivar table: whose rows are locked; None for a named lock.
    """

    lock: LockOptions
    level: str | None
    row_lock: LockOptions
    whole: bool
    table: Table | None


def make_plan(mapper: Mapper[Any] | None, lock: LockOptions, strategy: LockStrategy) -> LockPlan:
    """Return the plan, and keep it among ``strategy.plans``.

    :param mapper: None for a named lock.
    :raises LockNotSupported: this database cannot give that lock.
    """
    strategy.check_support(lock)
    level = next(iter(strategy.isolation.levels_for(lock)), None)
    row_lock = strategy.statements.row_lock(lock, level)
    table = None if mapper is None else own_table(mapper)
    plan = LockPlan(lock, level, row_lock, strategy.statements.locks_what_is_read, table)
    strategy.plans[mapper, lock] = plan
    return plan


def _clear_plans() -> None:
    for strategy in known_strategies():
        strategy.plans.clear()


clear_with_mappers(_clear_plans)
