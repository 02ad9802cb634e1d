"""The lazy load of the collections of a locked header, by a SELECT that is built once.

SQLAlchemy's lazy loader builds its SELECT at each load, which costs as much as to read the rows.
A header that was locked has a loader of ours in front of it: :attr:`InstanceState.callables`,
where SQLAlchemy keeps the loaders of one object.  It sends what get_document() sends.  All that is
unusual it leaves to the loader of SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.orm import InstanceState, Mapper, PassiveFlag
from sqlalchemy.orm.attributes import instance_state

from ..documents import Part, mapper_cache, parts_of, root_of
from ..sqlalchemy_internals import execute_listeners, load_lazily
from ..statements import key_names
from .load_parts import compares_keys, has_part, select_by_owner

_LAZY: Final = ("select", True)
_LATER: Final = (*_LAZY, "raise", "raise_on_sql", "noload", None, "dynamic", "write_only")


class PartLoader:
    """The loader of one collection of the headers of one class."""

    __slots__ = ("_name", "_parameters", "_select")

    def __init__(self, mapper: Mapper[Any], part: Part) -> None:
        self._name = part.name
        names = [mapper.get_property_by_column(one).key for one in part.owner.primary_key]
        self._parameters = dict(zip(key_names(part.owner), names, strict=True))
        self._select = select_by_owner(part)

    def __call__(self, state: InstanceState[Any], passive: PassiveFlag) -> Any:
        """Return the details, as they are in the database."""
        session = state.session
        if (
            session is None  # it raises DetachedInstanceError
            or passive != PassiveFlag.PASSIVE_OFF  # not a plain access: SQL may be forbidden
            or state.key is None
            or state.load_options  # they may be about the details
            or execute_listeners(session)  # they may look for, or change, a lazy load
        ):
            return load_lazily(state, self._name, passive)
        loaded = state.dict
        try:
            # The values that it has now, flushed or not.
            key = {parameter: loaded[name] for parameter, name in self._parameters.items()}
        except KeyError:  # expired: SQLAlchemy looks whether the row is there
            return load_lazily(state, self._name, passive)
        details: Sequence[Any] = session.execute(self._select, key).unique().scalars().all()
        return details


def load_by_select(headers: Iterable[object]) -> None:
    """Have the collections of headers that were locked load by a SELECT of ours, at their first use."""
    for state in map(instance_state, headers):
        loaders = loaders_of(state.manager.mapper)
        if loaders:
            state.callables = {**loaders, **state.callables}


@mapper_cache
def loaders_of(mapper: Mapper[Any]) -> Mapping[str, PartLoader]:
    """Return the loaders of the collections of this class, for ``InstanceState.callables``."""
    loaders = {
        part.name: PartLoader(mapper, part)
        for part in parts_of(root_of(mapper))
        if has_part(mapper, part) and _is_plain(part)
    }
    if loaders:
        event.listen(mapper.class_, "pickle", _leave_out, raw=True)
    return loaders


def _is_plain(part: Part) -> bool:
    """Return whether SQLAlchemy would load it by the same SELECT, and nothing with it."""
    relationship = part.relationship
    return (
        relationship.lazy in _LAZY
        and relationship.uselist is True
        and part.foreign_key is not None
        and root_of(part.detail) is not root_of(part.owner)
        and compares_keys(relationship)
        and _loads_nothing_else(part.detail)
    )


def _loads_nothing_else(detail: Mapper[Any]) -> bool:
    """Return whether objects of this class are read without others, and without other tables."""
    return all(
        mapper.polymorphic_load != "selectin"
        and all(one.lazy in _LATER for one in mapper.relationships)
        for mapper in detail.self_and_descendants
    )


def _leave_out(_state: InstanceState[Any], pickled: dict[str, Any]) -> None:
    """Leave our loaders out of what is pickled: another process may not have this class."""
    callables = pickled.get("callables", {})
    theirs = {key: one for key, one in callables.items() if not isinstance(one, PartLoader)}
    if theirs:
        pickled["callables"] = theirs
    else:
        pickled.pop("callables", None)
