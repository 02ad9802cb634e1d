"""Which documents a row belongs to: the way from a detail up to its header.

Nothing is loaded where the foreign key says it.  A row that is moved belongs to two
documents until it is flushed: the one that it leaves, and the one that it comes to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ClauseElement, Select, bindparam, inspect, select
from sqlalchemy.orm import InstanceState, Mapper, Session, aliased
from sqlalchemy.orm.exc import ObjectDeletedError

from ..lock_info import Identity
from .declare import has_nested_headers, parts_with_detail
from .mapping import key_attributes, mapper_cache, root_of
from .parts import Part

UNKNOWN: Final[Identity] = ()
"""In place of an identity that only the database could tell; no row has it."""


def loaded_headers(
    session: Session,
    root: Mapper[Any],
    mapper: Mapper[Any],
    loaded: Mapping[str, Any],
    below: tuple[InstanceState[Any], ...] = (),
) -> Iterator[Identity]:
    """The headers of a row, as far as what is loaded tells it.  Sends nothing.

    :param below: the way that has led here, which rows in a circle would never end.
    """
    for part in parts_with_detail(root, mapper):
        if part.foreign_key is None or any(name not in loaded for name in part.foreign_key):
            yield UNKNOWN
            continue
        identity = tuple([loaded[name] for name in part.foreign_key])
        if has_null(identity):
            continue
        if is_header(root, part.owner):
            yield identity
            continue
        owner = _in_session(session, part.owner, identity)
        if owner is None or owner in below:
            yield UNKNOWN
            continue
        way = (*below, owner)
        further = list(loaded_headers(session, root, owner.mapper, owner.dict, way))
        yield from further or [identity if root_of(part.owner) is root else UNKNOWN]


@mapper_cache
def is_header(root: Mapper[Any], mapper: Mapper[Any]) -> bool:
    """Whether every row of this class is the header of a document of this root."""
    return root_of(mapper) is root and not has_nested_headers(root)


def header_identity(state: InstanceState[Any], root: Mapper[Any]) -> Identity:
    """The primary key of a header; of one that is not inserted yet, as far as it is set."""
    if state.identity is not None:
        return state.identity
    return tuple(_plain(state.dict.get(name)) for name in key_attributes(root))


def has_null(identity: Identity) -> bool:
    """Whether it refers to nothing.  (``None in identity`` would compare SQL expressions.)"""
    return any(value is None for value in identity)


def _plain(value: Any) -> Any:
    return None if isinstance(value, ClauseElement) else value


class HeaderResolver:
    """Finds the headers of rows, and remembers what the database has told it.

    :param ask: whether a SELECT may be sent where nothing else tells; otherwise the answer
        has UNKNOWN in it.
    """

    def __init__(self, session: Session, root: Mapper[Any], *, ask: bool) -> None:
        self._session = session
        self._root = root
        self._ask = ask
        self._found: dict[object, frozenset[Identity]] = {}

    def headers(self, state: InstanceState[Any]) -> frozenset[Identity]:
        """The headers of an object of the session: those it has, and those it leaves."""
        found = self._found.get(state)
        if found is None:
            self._found[state] = frozenset()  # where rows are in a circle, they end here
            found = self._found[state] = frozenset(self._climb(state))
        return found

    def _climb(self, state: InstanceState[Any]) -> Iterator[Identity]:
        above = False
        for part in parts_with_detail(self._root, state.mapper):
            for owner in self._owners(state, part):
                above = True
                if isinstance(owner, InstanceState):
                    yield from self._headers_of_owner(owner)
                else:
                    yield from self.headers_of_row(part.owner, owner)
        is_one = root_of(state.mapper) is self._root
        if is_one and not (above and has_nested_headers(self._root)):
            yield header_identity(state, self._root)

    def _headers_of_owner(self, owner: InstanceState[Any]) -> frozenset[Identity]:
        if is_header(self._root, owner.mapper):
            return frozenset({header_identity(owner, self._root)})
        return self.headers(owner)

    def headers_of_row(self, mapper: Mapper[Any], identity: Identity) -> frozenset[Identity]:
        """The headers of a row, which need not be in the session."""
        if identity is UNKNOWN or is_header(self._root, mapper):
            return frozenset({identity})
        state = _in_session(self._session, mapper, identity)
        if state is not None:
            return self.headers(state)
        row = (root_of(mapper), identity)
        if row not in self._found:
            self._found[row] = frozenset()
            self._found[row] = frozenset(self._climb_row(mapper, identity))
        return self._found[row]

    def _climb_row(self, mapper: Mapper[Any], identity: Identity) -> Iterator[Identity]:
        above = False
        for part in parts_with_detail(self._root, mapper):
            for owner in self._ask_owners(part, identity):
                above = True
                yield from self.headers_of_row(part.owner, owner)
        if root_of(mapper) is self._root and not above:
            yield identity

    def _owners(
        self, state: InstanceState[Any], part: Part
    ) -> Iterator[InstanceState[Any] | Identity]:
        for name in part.backrefs:
            history = state.attrs[name].history
            changed = [*(history.added or ()), *(history.deleted or ())]
            for owner in changed if state.persistent else [*changed, *(history.unchanged or ())]:
                if owner is not None:
                    yield inspect(owner)
        if part.foreign_key is not None:
            yield from self._keys(state, part, part.foreign_key)
        else:
            if state.identity is not None:
                yield from self._ask_owners(part, state.identity)
            values = [state.dict.get(name) for name, _ in part.reference]
            if values and (state.identity is None or self._moved(state, part)):
                yield from self.owners_by_reference(part, values)

    def _moved(self, state: InstanceState[Any], part: Part) -> bool:
        return any(state.attrs[name].history.has_changes() for name, _ in part.reference)

    def owners_by_reference(self, part: Part, values: Sequence[Any]) -> list[Identity]:
        """The owners that a detail refers to by another key than the primary one."""
        if has_null(tuple(values)):
            return []
        if not self._ask:
            return [UNKNOWN]
        owner = part.owner.class_
        named = [getattr(owner, name) for _, name in part.reference]
        keys = [getattr(owner, name) for name in key_attributes(part.owner)]
        equal = (one == value for one, value in zip(named, values, strict=True))
        with self._session.no_autoflush:
            return [tuple(row) for row in self._session.execute(select(*keys).where(*equal))]

    def _keys(
        self, state: InstanceState[Any], part: Part, names: tuple[str, ...]
    ) -> Iterator[Identity]:
        """The foreign key that the row has, and the one that it had."""
        if any(name not in state.dict for name in names) and not self._loaded(state, names):
            if state.identity is not None:
                yield UNKNOWN
            return
        now = tuple(state.dict.get(name) for name in names)
        if any(isinstance(value, ClauseElement) for value in now):
            yield UNKNOWN
        histories = [state.attrs[name].history for name in names]
        before = tuple(
            history.deleted[0] if history.deleted else value
            for history, value in zip(histories, now, strict=True)
        )
        for key in dict.fromkeys((now, before)):
            if not has_null(tuple(map(_plain, key))):
                yield key
        if state.identity is not None and any(h.added and not h.deleted for h in histories):
            yield from self._ask_owners(part, state.identity)  # set while it was expired

    def _loaded(self, state: InstanceState[Any], names: tuple[str, ...]) -> bool:
        if not self._ask or state.identity is None:
            return False
        try:
            for name in names:
                getattr(state.obj(), name)
        except ObjectDeletedError:
            return False
        return True

    def _ask_owners(self, part: Part, identity: Identity) -> list[Identity]:
        if not self._ask:
            return [UNKNOWN]
        parameters = dict(zip(_names(part.detail), identity, strict=True))
        with self._session.no_autoflush:
            rows = self._session.execute(_owners_of_row(part), parameters)
            return [tuple(row) for row in rows]


def _in_session(
    session: Session, mapper: Mapper[Any], identity: Identity
) -> InstanceState[Any] | None:
    known = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    return None if known is None else inspect(known)


@mapper_cache
def _names(mapper: Mapper[Any]) -> tuple[str, ...]:
    return tuple(f"detail_{position}" for position in range(len(mapper.primary_key)))


@mapper_cache
def _owners_of_row(part: Part) -> Select[Any]:
    owner: Any = aliased(part.owner.class_)
    detail: Any = aliased(part.detail.class_)
    keys = [getattr(owner, name) for name in key_attributes(part.owner)]
    row = zip(key_attributes(part.detail), _names(part.detail), strict=True)
    return (
        select(*keys)
        .join(detail, getattr(owner, part.name).of_type(detail))
        .where(*(getattr(detail, name) == bindparam(parameter) for name, parameter in row))
    )
