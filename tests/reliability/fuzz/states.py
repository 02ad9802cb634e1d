"""The states of a session before it is asked for a lock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from sa_doclock import LockingSession, LockOptions
from sa_doclock.options import base_of
from tests.reliability.fuzz.entities import Shape
from tests.sql.models import Customer

Prepare = Callable[[LockingSession, Shape], Any]
"""A function that brings a session into a state.  Keep its result: the identity map is weak."""

_new_ids = itertools.count(1000)


def _class_of(shape: Shape) -> Any:
    return shape.entity if isinstance(shape.entity, type) else None


def _held(lock: LockOptions) -> Prepare:
    def prepare(session: LockingSession, shape: Shape) -> Any:
        entity = _class_of(shape)
        return entity and session.get_entity(entity, shape.key, lock)

    return prepare


def _other(lock: LockOptions) -> Prepare:
    return lambda session, _shape: session.get_entity(Customer, 1, lock)


def _savepoint(session: LockingSession, _shape: Shape) -> Any:
    return session.begin_nested()


def _read_in_savepoint(session: LockingSession, _shape: Shape) -> Any:
    return session.begin_nested(), session.get(Customer, 1)


def _changed(session: LockingSession, shape: Shape) -> Any:
    entity = _class_of(shape)
    found = entity and session.get(entity, shape.key)
    if found is not None:
        found.total += 1
    return found


def _rolled_back(session: LockingSession, _shape: Shape) -> Any:
    session.get(Customer, 1)
    session.rollback()


def _new_elsewhere(session: LockingSession, _shape: Shape) -> Any:
    session.add(Customer(id=next(_new_ids), name="new"))


def _flushed(session: LockingSession, shape: Shape) -> Any:
    _new_elsewhere(session, shape)
    session.flush()


STATES: Mapping[str, Prepare] = {
    "no transaction": lambda _session, _shape: None,
    "open by a read": lambda session, _shape: session.get(Customer, 1),
    "open by begin()": lambda session, _shape: session.begin(),
    "savepoint": _savepoint,
    "read in a savepoint": _read_in_savepoint,
    "loaded": lambda session, shape: _class_of(shape) and session.get(_class_of(shape), shape.key),
    "changed": _changed,
    "new elsewhere": _new_elsewhere,
    "flushed elsewhere": _flushed,
    "held ForUpdate": _held(LockOptions.ForUpdate),
    "held SharedRead": _held(LockOptions.SharedRead),
    "held SnapshotRead": _held(LockOptions.SnapshotRead),
    "another held ForUpdate": _other(LockOptions.ForUpdate),
    "another held SharedRead": _other(LockOptions.SharedRead),
    "another held SnapshotRead": _other(LockOptions.SnapshotRead),
    "rolled back": _rolled_back,
}

AFTERWARDS = (
    *("savepoint", "read in a savepoint", "new elsewhere", "loaded"),
    *("another held ForUpdate", "another held SharedRead"),
)
"""The states that may follow the first one; none ends a transaction."""


def brought_by(state: str, lock: LockOptions) -> bool:
    """Return whether the state holds the same document as strongly, so nothing has to be sent."""
    if not state.startswith("held "):
        return False
    strength = (LockOptions.SnapshotRead, LockOptions.SharedRead, LockOptions.ForUpdate)
    held, wanted = LockOptions[state.removeprefix("held ")], base_of(lock)
    return wanted in strength and strength.index(held) >= strength.index(wanted)
