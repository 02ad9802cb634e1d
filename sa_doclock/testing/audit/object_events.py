"""The events of mapped objects: loaded, changed, written."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import InstanceState, Mapper

from .places import places_of_program
from .rows import Row, changed_attributes, entity_name, row_of
from .transactions import RowLock, Transaction, Write
from .watched import Watched


class ObjectEvents:
    """Listeners of ``Mapper``, and ``set`` of ``QueryableAttribute``, for states and not objects."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def load(self, state: InstanceState[Any], context: Any) -> None:
        """Remember the SELECT that has read an object."""
        seen = self._watched.of_object(state)
        if seen is None or seen.reading is None or context is None:
            return
        read = self._watched.reads[state] = seen.reading
        if read.locked and read.locks_rows_of(state.mapper):
            row = row_of(state)
            if row is not None:
                self._watched.acquire(seen.transaction, row, read.lock)

    def refresh(self, state: InstanceState[Any], context: Any, attributes: Any) -> None:
        """Remember it likewise, if all that is loaded of the row was read again."""
        if attributes is None or attributes >= _loaded_columns(state):
            self.load(state, context)

    def set(self, state: InstanceState[Any], _value: Any, _old: Any, initiator: Any) -> None:
        """Remember the line that gives a stored object a new value."""
        if state.key is not None:
            self._watched.assigned.setdefault(state, {})[initiator.key] = places_of_program()

    def after_insert(self, mapper: Mapper[Any], _: Connection, state: InstanceState[Any]) -> None:
        found = self._judge("insert", mapper, state)
        if found is not None:
            transaction, write = found
            if transaction.has_room():
                transaction.inserted.add(write.row)

    def after_update(self, mapper: Mapper[Any], _: Connection, state: InstanceState[Any]) -> None:
        self._hold(self._judge("update", mapper, state))

    def after_delete(self, mapper: Mapper[Any], _: Connection, state: InstanceState[Any]) -> None:
        self._hold(self._judge("delete", mapper, state))

    def _judge(
        self, kind: str, mapper: Mapper[Any], state: InstanceState[Any]
    ) -> tuple[Transaction, Write] | None:
        changed = dict(changed_attributes(state))
        assigned = self._watched.assigned.pop(state, {})
        seen, instance = self._watched.of_object(state), state.obj()
        if seen is None or instance is None or (kind == "update" and not changed):
            return None
        row = Row(entity_name(mapper), tuple(mapper.primary_key_from_instance(instance)))
        read = self._watched.reads.get(state)
        added = self._watched.added.pop(state, None)
        places = places_of_program()
        write = Write(kind, row, state, mapper, places, assigned, read, changed, added)
        for rule in self._watched.rules:
            rule.wrote(seen.transaction, write)
        return seen.transaction, write

    def _hold(self, found: tuple[Transaction, Write] | None) -> None:
        """Note the lock that an UPDATE or DELETE takes by itself."""
        if found is not None:
            transaction, write = found
            if transaction.has_room():
                transaction.updated.add(write.row)
            lock = RowLock(write.places[0], by_write=True)
            self._watched.acquire(transaction, write.row, lock)


def _loaded_columns(state: InstanceState[Any]) -> set[str]:
    columns = state.dict.keys() & state.mapper.column_attrs.keys()
    return columns - {one.key for one in state.mapper.primary_key}
