"""The targets of locked(): a key, an object in hand, or a select; and what one key of many found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Select, inspect
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import InstanceState, Mapper, Session

from ...errors import LockMisuse
from ...options import LockOptions, base_of, check_lock
from ..documents import identity_of
from ..key_text import key_text
from ..statements import locked_entity_of

T = TypeVar("T")

NO_IDENT: Final[Any] = object()


def check_block_lock(lock: LockOptions, name: str) -> None:
    """:raises ValueError: it locks nothing."""
    if base_of(check_lock(lock)) in (LockOptions.None_, LockOptions.NoLock):
        raise ValueError(f"{name}() needs a lock, and {lock} is none")


def lock_of_block(entity: Any, ident: Any, lock: LockOptions, name: str) -> LockOptions:
    """Return the lock of a block: that of a select which has one already, else the given one.

    :raises TypeError: the lock stands in the place of the primary key.
    :raises ValueError: it locks nothing.
    """
    if isinstance(ident, LockOptions):
        misplaced = ident
        raise TypeError(f"give the lock of {name}() by name: lock={misplaced}")
    own = locked_entity_of(entity) if isinstance(entity, Select) else None
    if own is not None:
        lock = own.lock
    check_block_lock(lock, name)
    return lock


def key_of(session: Session, instance: T) -> tuple[type[T], tuple[Any, ...]]:
    """Return the class and the primary key of an object of this session.

    :raises TypeError: not an object of a mapped class.
    :raises LockMisuse: it is not in this session, or has no row yet.
    """
    state = _state_of(instance)
    name = state.class_.__name__
    if state.session is not session:
        raise LockMisuse(
            f"the {name} is not in this session: load it here, or lock it by its primary key"
        )
    if state.identity is None:
        raise LockMisuse(f"the {name} has no row yet: flush it first")
    return state.class_, tuple(state.identity)


def _state_of(instance: object) -> InstanceState[Any]:
    if isinstance(instance, type):
        raise TypeError(f"{instance.__name__} is a class: give the primary key of its row too")
    state = inspect(instance, raiseerr=False)
    if not isinstance(state, InstanceState):
        raise TypeError(
            f"a mapped class and a primary key, an object or a select is needed, not {instance!r}"
        )
    return state


def selected_mapper(statement: Select[Any]) -> Mapper[Any]:
    """Return the mapper of the only entity that the statement selects.

    :raises TypeError: it selects tables, and no mapped class.
    :raises ValueError: it selects columns, or several entities.
    """
    described = statement.column_descriptions
    if not any("entity" in one for one in described):
        raise TypeError(
            "an ORM select is needed, select(Order), not one of tables: locked() returns an object"
        )
    entity = described[0]["entity"] if len(described) == 1 else None
    if entity is None or described[0]["expr"] is not entity:
        raise ValueError("locked() needs a select of one mapped class, and of nothing else")
    mapper: Mapper[Any] = inspect(entity).mapper
    return mapper


def in_given_order(mapper: Mapper[Any], found: Sequence[T], idents: Iterable[Any]) -> list[T]:
    """Return the objects in the order of these keys.

    Objects whose key only the database takes for one of these come last, in their own order.
    """
    by_key = {tuple(mapper.primary_key_from_instance(one)): one for one in found}
    given = (identity_of(mapper, ident) for ident in idents)
    ordered = [by_key.pop(identity) for identity in given if identity in by_key]
    return [*ordered, *by_key.values()]


def one_for_each(
    session: Session, mapper: Mapper[Any], found: Sequence[T], idents: Iterable[Any]
) -> list[T]:
    """Return the object of each key, in the order of the keys.

    :raises sqlalchemy.exc.NoResultFound: there is no row with one of the keys.
    """
    by_key = {tuple(mapper.primary_key_from_instance(one)): one for one in found}
    locked = {id(one) for one in found}
    objects = []
    for ident in idents:
        identity = identity_of(mapper, ident)
        one = by_key.get(identity)
        if one is None:  # the database may compare the key otherwise, "ABC" with "abc"
            with session.no_autoflush:
                one = session.get(mapper.class_, identity)
        if one is None or id(one) not in locked:
            raise no_result(mapper.class_, ident)
        objects.append(one)
    return objects


def no_result(entity: type[Any], ident: Any) -> NoResultFound:
    """Return the error for a row that must be there."""
    return NoResultFound(f"there is no {entity.__name__} with the primary key {key_text(ident)}")
