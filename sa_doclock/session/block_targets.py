"""The targets of locked(): a key, an object in hand, or a select; and what one key of many found."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Select, inspect
from sqlalchemy.orm import Mapper, Session

from ..core.documents import identity_of
from ..core.session import check_block_lock, no_result
from ..core.statements import locked_entity_of
from ..options import LockOptions

T = TypeVar("T")

NO_IDENT: Final[Any] = object()


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


def read_once(idents: Iterable[T]) -> Iterable[T]:
    """Return the keys as a list where they are no collection, and may come only once.

    What is no list of keys, such as a text, is returned as it is: the call for the lock refuses it.
    """
    if isinstance(idents, Iterable) and not isinstance(idents, Collection):
        return list(idents)
    return idents


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
