"""The arguments of a session's methods: an object in hand, and keys in some order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from sqlalchemy import inspect
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import InstanceState, Mapper, Session

from ...errors import LockMisuse
from ...keys import key_text, public_key
from ...options import LockOptions, base_of, check_lock
from ..documents import identity_of

T = TypeVar("T")


def check_block_lock(lock: LockOptions, name: str) -> None:
    """:raises ValueError: it locks nothing."""
    if base_of(check_lock(lock)) in (LockOptions.None_, LockOptions.NoLock):
        raise ValueError(f"{name}() needs a lock, and {lock} takes none")


def key_of(session: Session, instance: T) -> tuple[type[T], Any]:
    """Return the class of an object of this session, and its primary key as ``get_entity()`` takes it.

    :raises TypeError: not an object of a mapped class.
    :raises LockMisuse: it is not in this session, or has no row yet.
    """
    if isinstance(instance, type):
        raise TypeError(f"{instance.__name__} is a class: give the primary key of its row too")
    state = inspect(instance, raiseerr=False)
    if not isinstance(state, InstanceState):
        raise TypeError(
            f"lock a mapped class with a primary key, an object or a select, not {instance!r}"
        )
    name = state.class_.__name__
    if state.session is not session:
        raise LockMisuse(
            f"the {name} is not in this session: load it here, or lock it by its primary key"
        )
    if state.identity is None:
        raise LockMisuse(f"the {name} has no row yet: flush it first")
    return state.class_, public_key(tuple(state.identity))


def in_given_order(mapper: Mapper[Any], found: Sequence[T], idents: Iterable[Any]) -> list[T]:
    """Return the objects in the order of these keys.

    Objects whose key only the database takes for one of these come last, in their own order.
    """
    by_key = {tuple(mapper.primary_key_from_instance(one)): one for one in found}
    given = (identity_of(mapper, ident) for ident in idents)
    ordered = [by_key.pop(identity) for identity in given if identity in by_key]
    return [*ordered, *by_key.values()]


def no_result(entity: type[Any], ident: Any) -> NoResultFound:
    """Return the error for a row that must be there."""
    return NoResultFound(f"there is no {entity.__name__} with the primary key {key_text(ident)}")
