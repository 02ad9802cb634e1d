"""The members of wide interfaces do not grow: the state of a session, and the dialect of a database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import sqlalchemy as sa

from sa_doclock import LockingSession, LockMisuse, LockOptions
from sa_doclock.core.documents import mapper_of
from sa_doclock.core.session import context_of
from sa_doclock.core.transaction import Condition
from sa_doclock.core.transaction.part import SessionParts
from sa_doclock.dialects import FoundServer
from sa_doclock.dialects.base import LockStrategy
from tests.docs.roles import ROLES
from tests.support.models import Base, Order
from tests.support.rows import rows

#: The objects of a dialect, by their names.
PARTS: dict[str, type] = {**ROLES, "compatible": FoundServer}
#: What has more subjects than eight.
MOST = {"statements": 9}


#: The classes of the state of a session that have more than ten members: the most that each may have.
STATE = {
    "LockContext": 14,
    "LockTransaction": 65,
    "TransactionConnections": 31,
    "TransactionConnection": 42,
    "Ledger": 36,
    "LoadedDocuments": 14,
    "DocumentIndex": 36,
}


def members(kind: type, *, private: bool) -> set[str]:
    """Return the names that a class and its bases have or declare, without those of Python."""
    names = {
        name
        for base in kind.__mro__[:-1]
        for name in (*vars(base), *vars(base).get("__annotations__", {}))
        if not name.startswith(("__", "_abc_"))
    }
    return {name for name in names if private or not name.startswith("_")}


def test_each_part_of_the_state_of_a_session_has_few_members(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/members.db")
    Base.metadata.create_all(engine)
    with LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        context = context_of(session)
        context.loaded.of(mapper_of(Order))
        context.transaction.note_half_done(LockMisuse("of a test"))
        context.transaction.refuse_from_now_on(LockMisuse("of a test"))
        found = dict(_members_within({}, context))
    assert found.keys() >= STATE.keys(), found.keys()
    more = {kind: names for kind, names in found.items() if len(names) > STATE.get(kind, 10)}
    assert not more, {kind: len(names) for kind, names in more.items()}


def attributes(one: object) -> dict[str, Any]:
    """Return the attributes of an object, by its dict or by its slots."""
    slots = [name for name in getattr(one, "__slots__", ()) if name != "__weakref__"]
    return {name: getattr(one, name) for name in slots} | getattr(one, "__dict__", {})


def _members_within(seen: dict[int, Any], *objects: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield the classes of the core whose objects can be reached from these, with their members."""
    for one in objects:
        kept = attributes(one) if type(one).__module__.startswith("sa_doclock.core") else {}
        if id(one) in seen or not kept:
            continue
        seen[id(one)] = one
        # Not the moves of an Enum, nor the hooks of the features.
        if not isinstance(one, (Condition, SessionParts)):
            yield type(one).__name__, members(type(one), private=True) | kept.keys()
        for value in kept.values():
            yield from _members_within(seen, *(value.values() if type(value) is dict else [value]))


def test_the_interface_of_a_dialect_has_few_members() -> None:
    found = members(LockStrategy, private=False)
    assert len(found) <= 35, sorted(found)


@rows("name", PARTS)
def test_each_object_of_a_dialect_has_one_subject(name: str) -> None:
    found = members(PARTS[name], private=False)
    assert len(found) <= MOST.get(name, 8), sorted(found)


def test_every_object_of_a_dialect_is_counted() -> None:
    kinds = get_type_hints(LockStrategy)
    objects = {name for name, kind in kinds.items() if _is_of_dialects(kind)}
    assert objects == PARTS.keys()


def _is_of_dialects(kind: Any) -> bool:
    return any(
        getattr(one, "__module__", "").startswith("sa_doclock.dialects")
        for one in (kind, *get_args(kind), *(o for a in get_args(kind) for o in get_args(a)))
    )
