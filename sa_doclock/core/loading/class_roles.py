"""The role of a class in the documents of one root, and the listeners that note its objects.

``document_index`` calls role_of() for each new object.  From then on, the callback of
note_objects() tells the session about objects that are loaded again or moved to another owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.orm import InstanceState, Mapper, Session

from ...sqlalchemy_internals import allow_listening
from ..documents import (
    Part,
    is_header,
    is_row_of_root,
    key_attributes,
    mapper_cache,
    parts_of,
    parts_with_detail,
)

_RAISING: Final = ("raise", "raise_on_sql")


class Role(NamedTuple):
    """The role of the objects of one class in the documents of one root.

    :ivar header: they are headers.
    :ivar parts: the relationships of which they can be parts.
    :ivar direct: the foreign key that names the header, if they are parts of nothing else.
    :ivar collections: the attributes that lead to their parts, and that load themselves.
    :ivar raising: the parts that no access loads.
    """

    header: bool
    parts: tuple[Part, ...]
    direct: tuple[str, ...] | None
    collections: frozenset[str]
    raising: tuple[Part, ...]


@mapper_cache
def role_of(root: Mapper[Any], mapper: Mapper[Any]) -> Role | None:
    """Return the role of this class in documents of this root, or None."""
    header, parts = is_row_of_root(mapper, root), parts_with_detail(root, mapper)
    if not (header or parts):
        return None
    _listen_to_parts(parts)  # of a second class on the table too
    below = {
        part.name: part
        for part in parts_of(root)
        if (mapper.isa(part.owner) or part.owner.isa(mapper)) and part.name in mapper.relationships
    }
    raising = {name: part for name, part in below.items() if part.relationship.lazy in _RAISING}
    direct = parts[0].foreign_key if len(parts) == 1 and is_header(root, parts[0].owner) else None
    names = frozenset(below.keys() - raising)
    return Role(header, parts, direct, names, tuple(raising.values()))


# Global: a listener gets only the session, whose info belongs to the program.
# Threads: one thread at a time uses a session, and each use is one atomic operation of a dict.
_note_of: WeakKeyDictionary[Session, Callable[[InstanceState[Any]], None]] = WeakKeyDictionary()

# Global, like mapped classes: one listener per attribute serves all sessions of the process.
# Threads: read and changed under the lock.
_followed: WeakKeyDictionary[type[Any], set[str]] = WeakKeyDictionary()
_following = Lock()  # held until the listeners of a followed class are in place


def note_objects(
    session: Session, root: Mapper[Any], note: Callable[[InstanceState[Any]], None]
) -> None:
    """Call ``note`` for objects of these documents that are loaded again, or moved."""
    _listen_to(root)
    _note_of[session] = note


@mapper_cache
def _listen_to(root: Mapper[Any]) -> None:
    _listen_once(root, key_attributes(root))
    _listen_to_parts(parts_of(root))


def _listen_to_parts(parts: Iterable[Part]) -> None:
    for part in parts:
        _listen_once(part.detail, (*part.attributes, *part.backrefs))


def _listen_once(mapper: Mapper[Any], names: Iterable[str]) -> None:
    entity, all_of_them = mapper.class_, tuple(mapper.self_and_descendants)
    with _following:
        if entity not in _followed:
            _followed[entity] = set()
            allow_listening((each.class_manager for each in all_of_them), "refresh")
            event.listen(entity, "refresh", _note, raw=True, propagate=True)
        for name in set(names).difference(_followed[entity]):
            _followed[entity].add(name)
            allow_listening((getattr(each.class_, name) for each in all_of_them), "set")
            event.listen(getattr(entity, name), "set", _note, raw=True, propagate=True)


def _note(state: InstanceState[Any], *_: object) -> None:
    """Note that the object was loaded again, or that the attribute naming its owner was set."""
    session = state.session
    note = None if session is None else _note_of.get(session)
    if note is not None:
        note(state)
