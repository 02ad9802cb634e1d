"""The events of the rows of declared documents that a flush writes, and of no others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from threading import Lock
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import InstanceState, Mapper
from sqlalchemy.orm.interfaces import EXT_CONTINUE

from ...core.documents import kind_attribute, listen_for_documents
from ...core.sqlalchemy_internals import allow_listening
from .rows import Write
from .write_guard import guard_of

# Global, as mappers are: each is listened to once, for all sessions of the process.
# Threads: read and changed under the lock.
_followed: WeakSet[Mapper[Any]] = WeakSet()
_following = Lock()  # a thread that finds a mapper followed must find its listeners, too


@listen_for_documents
def _follow(mappers: Collection[Mapper[Any]]) -> None:
    with _following:
        for mapper in _outermost({*mappers, *map(_of_all_kinds, mappers)}):
            if mapper not in _followed:
                _followed.add(mapper)
                for name, check in _WRITES.items():
                    allow_listening(mapper.self_and_descendants, name)
                    # With retval, or SQLAlchemy puts a function around ours, for each row a call.
                    event.listen(mapper, name, check, raw=True, propagate=True, retval=True)


def _of_all_kinds(mapper: Mapper[Any]) -> Mapper[Any]:
    """Return the class whose rows may become rows of this one."""
    return mapper if kind_attribute(mapper) is None else mapper.base_mapper


def _outermost(mappers: Collection[Mapper[Any]]) -> Iterator[Mapper[Any]]:
    """Yield those that are no subclass of another, whose listeners they have already."""
    for mapper in mappers:
        if not any(mapper is not other and mapper.isa(other) for other in mappers):
            yield mapper


def _on_write(write: Write) -> Callable[..., Any]:
    def check(_mapper: Mapper[Any], _connection: Connection, state: InstanceState[Any]) -> Any:
        guard = guard_of(state.session)
        if guard is not None and not guard.flushes.checked.is_unchanged(state):
            guard.flushes.check_row(state, write)
        return EXT_CONTINUE

    return check


def _before_update(_mapper: Mapper[Any], _connection: Connection, state: InstanceState[Any]) -> Any:
    # Of a row that was checked the document is held; another, which it comes to, is checked after.
    guard = guard_of(state.session)
    if guard is not None and not guard.flushes.checked.has(state):
        guard.flushes.check_row(state, Write.UPDATE)
    return EXT_CONTINUE


# After the row was written no hook can change it any more, and raising takes it back; before,
# the database still tells what an expired row was.
_WRITES = {
    "after_insert": _on_write(Write.INSERT),
    "before_update": _before_update,
    "after_update": _on_write(Write.UPDATE),
    "before_delete": _on_write(Write.DELETE),
}
