"""The plan of a lock: the constants of all calls for the same class and engine."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Table
from sqlalchemy.orm import Mapper

from ...dialects import check_support, kept_levels, known_strategies, levels_for, sets_own_level
from ...dialects.base import Limit, LockStrategy, lock_in_select
from ...options import LockOptions
from ..documents import clear_with_mappers, own_table


class LockPlan(NamedTuple):
    """The plan of one kind of lock on rows of one class, at one engine.

    :ivar strategy: the dialect of the engine.
    :ivar level: the isolation level of a transaction that is opened for it; None: any.
    :ivar row_lock: the lock that the SELECT must carry at this level.
    :ivar table: whose rows are locked; None for a named lock.
    :ivar sets_level: the dialect sets the level of a transaction, not SQLAlchemy.
    :ivar fits: the isolation levels of a transaction that need not be changed for it.
    :ivar upgrades: it may follow a SharedRead that has opened the transaction.
    :ivar may_be_slow: the server may limit whole statements, whether or not they wait for a lock.
    """

    strategy: LockStrategy
    lock: LockOptions
    level: str | None
    row_lock: LockOptions
    table: Table | None
    sets_level: bool = False
    fits: frozenset[str | None] = frozenset()
    upgrades: bool = False
    may_be_slow: bool = False


def make_plan(
    mapper: Mapper[Any] | None, lock: LockOptions, strategy: LockStrategy, *, upgrades: bool = False
) -> LockPlan:
    """Return the plan, and keep it among ``strategy.findings``.

    :param mapper: None for a named lock, and for rows of tables.
    :raises LockNotSupported: this database cannot give that lock.
    """
    check_support(strategy, lock)
    level = next(iter(levels_for(strategy.isolation, lock)), None)
    row_lock = lock_in_select(strategy.statements, lock, level)
    table = None if mapper is None else own_table(mapper)
    sets = sets_own_level(strategy.isolation)
    fits = frozenset({level, *kept_levels(strategy.isolation, lock)})
    slow = any(row.limit is Limit.STATEMENT for row in strategy.errors.codes.values())
    plan = LockPlan(strategy, lock, level, row_lock, table, sets, fits, upgrades, slow)
    strategy.findings[LockPlan, mapper, lock, upgrades] = plan
    return plan


def _clear_plans() -> None:
    for strategy in known_strategies():
        for key in [*strategy.findings]:
            if isinstance(key, tuple) and key[0] is LockPlan:
                strategy.findings.pop(key, None)


clear_with_mappers(_clear_plans)
