"""The statements of the golden files: each a shape of SELECT, made for each lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Select, inspect, select
from sqlalchemy.orm import Mapper, aliased

from sa_doclock import LockOptions, with_lock
from sa_doclock.statements import lock_by_key, select_by_key
from tests.sql.models import (
    Building,
    ColdStore,
    Contract,
    Customer,
    Fault,
    Invoice,
    Journal,
    Lease,
    Line,
    Order,
    Project,
    Ticket,
    Voucher,
)

LOCKS = (
    LockOptions.None_,
    LockOptions.NoLock,
    LockOptions.SharedRead,
    LockOptions.SharedRead | LockOptions.NoWait,
    LockOptions.SharedRead | LockOptions.SkipLocked,
    LockOptions.ForUpdate,
    LockOptions.ForUpdate | LockOptions.NoWait,
    LockOptions.ForUpdate | LockOptions.SkipLocked,
    LockOptions.SnapshotRead,
)
"""All that DESIGN.md allows."""

Make = Callable[[LockOptions], Select[Any]]

_other = aliased(Order, name="other")
_alias = aliased(Order, name="o")
_flat = aliased(Lease, name="rented", flat=True)


def _locked(statement: Any, entity: Any = None) -> Make:
    return lambda lock: with_lock(statement, lock, entity)


def _mapper(entity: type[Any]) -> Mapper[Any]:
    mapper: Mapper[Any] = inspect(entity)
    return mapper


SETS: Mapping[str, Make] = {
    "plain": _locked(select(Order)),
    "filtered, in order": _locked(select(Order).where(Order.total > 5).order_by(Order.id)),
    "limit": _locked(select(Order).order_by(Order.id).limit(10)),
    "limit and offset": _locked(select(Order).order_by(Order.id).limit(10).offset(20)),
    "aliased": _locked(select(_alias).where(_alias.total > 5)),
    "join": _locked(select(Order).join(Order.lines).where(Line.value > 5)),
    "join with an alias of itself": _locked(select(Order).join(_other, Order.total < _other.total)),
    "EXISTS": _locked(select(Order).where(Order.lines.any(Line.value > 5))),
    "two entities, the first": _locked(select(Order, Customer).join(Order.customer), Order),
    "two entities, the second": _locked(select(Order, Customer).join(Order.customer), Customer),
    "composite key": _locked(select(Voucher)),
    "schema and quoted names": _locked(select(Journal).where(Journal.total > 5)),
    "joined inheritance": _locked(select(Lease)),
    "joined inheritance, its root": _locked(select(Contract)),
    "joined inheritance, aliased flat": _locked(select(_flat).where(_flat.rent > 5)),
    "joined inheritance, with_polymorphic": _locked(select(Project)),
    "joined inheritance, with_polymorphic, a subclass": _locked(select(Building)),
    "single-table inheritance": _locked(select(Fault)),
    "single-table inheritance, its root": _locked(select(Ticket)),
    "concrete inheritance": _locked(select(ColdStore)),
    "mapped lazy='joined'": _locked(select(Invoice)),
}
"""What entity_set() and with_lock() make."""


def _by_key(entity: type[Any]) -> Make:
    return lambda lock: select_by_key(_mapper(entity), lock)


def _lock_alone(entity: type[Any]) -> Make:
    return lambda lock: lock_by_key(_mapper(entity), lock)


BY_KEY: Mapping[str, Make] = {
    "by key, plain": _by_key(Order),
    "by key, composite": _by_key(Voucher),
    "by key, schema and quoted names": _by_key(Journal),
    "by key, joined inheritance: the root's row": _lock_alone(Lease),
    "by key, joined inheritance, with_polymorphic: the root's row": _lock_alone(Project),
    "by key, single-table inheritance": _by_key(Fault),
    "by key, concrete inheritance": _by_key(ColdStore),
    "by key, mapped lazy='joined'": _by_key(Invoice),
}
"""What get_entity() sends: lock and read in one, or the lock alone where there is more to read."""

TIMED = ("by key, plain", "by key, joined inheritance: the root's row")
"""Those that are shown with a limit to the wait in their text, too."""
