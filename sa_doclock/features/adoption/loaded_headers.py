"""The headers that a session had before the program's own ``with_for_update()``, read again by it.

The statement fills in the objects of its rows anew: nothing more is sent.  SQLAlchemy would overwrite
pending changes then; without autoflush there may be some.  So it fills in only what an object lacks:
what was loaded of the headers is expired for the time of the statement, and those that it does not
return get it back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import Column
from sqlalchemy.orm import InstanceState, LoaderCallableStatus, Mapper, Session
from sqlalchemy.orm.attributes import flag_modified, instance_state, set_committed_value
from sqlalchemy.sql import Executable

from ...core.documents import document_key, mapper_cache, root_of
from ...core.loading import role_of
from ...core.sqlalchemy_internals import (
    deleted_states,
    modified_states,
    overwrites_objects,
    refreshed_by,
)
from ...core.transaction import LockContext
from ...options import LockOptions

S = TypeVar("S", bound=Executable)

_KEEPS_OTHERS_OUT: Final = LockOptions.ForUpdate | LockOptions.SharedRead


class _Pending(NamedTuple):
    """A change that is not flushed yet, and the value that the row had when it was read."""

    value: Any
    read: Any


class _Loaded(NamedTuple):
    """An object, what was loaded of its row, and its pending changes; both by attribute."""

    state: InstanceState[Any]
    instance: Any  # keeps it from being freed
    values: dict[str, Any]
    pending: dict[str, _Pending]


class LoadedHeaders:
    """The headers of some hierarchies in one session, for the time of one statement.

    :param options: the execution options of the statement.
    :ivar read_again: those that the session had, and that the statement has locked.
    """

    def __init__(
        self, context: LockContext, roots: frozenset[Mapper[Any]], options: Mapping[str, Any]
    ) -> None:
        self._session: Session = context.session()
        self._documents, self._context = context.loaded, context
        self.roots, self._options = roots, options
        self._expired: list[_Loaded] = []
        self._flushed = False
        self.read_again: list[InstanceState[Any]] = []

    def prepare(self, statement: S) -> S:
        """Return the statement that reads them again; to be called after the autoflush."""
        session = self._session
        if not (session.identity_map and self.roots):
            return statement
        for root in self.roots:
            self._documents.of(root)  # what comes from now on was not there before
        refreshed = refreshed_by(self._options)
        if refreshed is not None:
            self._expire_unchanged(refreshed)  # refresh() of some attributes leaves the others
        elif may_overwrite(session) or any(_raises(root) for root in self.roots):
            self._expire()
        else:
            return statement.execution_options(populate_existing=True)
        return statement

    def _expire_unchanged(self, state: InstanceState[Any]) -> None:
        columns = _columns_read_again(state.mapper) & state.dict.keys()
        unchanged = columns - state.committed_state.keys()
        if unchanged:
            self._session.expire(state.obj(), unchanged)

    def _expire(self) -> None:
        overwritten = overwrites_objects(self._options)
        for state in self._session.identity_map.all_states():
            if root_of(state.mapper) in self.roots and not self._is_held(state):
                columns = _columns_read_again(state.mapper) & state.dict.keys()
                # All is filled in anew, so that only changes have to be kept; of a row that is to be
                # deleted, all.
                if overwritten and state not in deleted_states(self._session):
                    columns = columns & state.committed_state.keys()
                self._expire_one(state, columns)

    def _is_held(self, state: InstanceState[Any]) -> bool:
        """Return whether a lock has kept others from changing the row since it was read."""
        held = self._context.ledger.held.get(document_key(state.mapper, state.identity or ()))
        return held is not None and bool(held & _KEEPS_OTHERS_OUT)

    def _expire_one(self, state: InstanceState[Any], columns: AbstractSet[str]) -> None:
        instance, loaded, changed = state.obj(), state.dict, state.committed_state
        if instance is None or not columns:
            return
        pending = {name: _Pending(loaded[name], changed[name]) for name in columns & changed.keys()}
        values = {name: loaded[name] for name in columns - pending.keys()}
        # Expired, not removed: a listener that looks at it meanwhile has it loaded.
        self._session.expire(instance, columns)
        self._expired.append(_Loaded(state, instance, values, pending))

    def before_flush(self) -> None:
        """Give all objects back what they had: a listener of the program flushes meanwhile."""
        self._flushed = bool(self._expired)
        self.put_back()

    def put_back(self) -> None:
        """Give all objects back what they had, except what was read meanwhile."""
        for one in self._expired:
            if one.state.session is self._session and not one.state.expired:
                for name in one.values.keys() - one.state.dict.keys():
                    set_committed_value(one.instance, name, one.values[name])
                for name, pending in one.pending.items():
                    _set_pending(one, name, pending)
        self._expired = []

    def finish(self, returned: Iterable[Any]) -> Sequence[tuple[InstanceState[Any], str]]:
        """Give the objects back what the statement has not read.

        :param returned: the objects of its rows.
        :returns: the attributes with a pending change whose column another has changed meanwhile.
        """
        states = dict.fromkeys(instance_state(one) for one in returned if one is not None)
        self._note_locked(states)
        again = [one for one in self._expired if one.state in states]
        self._expired = [one for one in self._expired if one.state not in states]
        self.put_back()
        return [(one.state, name) for one in again for name in self._finish_one(one)]

    def _note_locked(self, states: Iterable[InstanceState[Any]]) -> None:
        """Note those that the session had, and expire what the statement cannot have read."""
        for state in [one for one in states if not self._is_held(one)]:
            self._expire_second_classes(state)
            if self._documents.had(state):
                self.read_again.append(state)
                if self._flushed:
                    self._expire_unchanged(state)

    def _expire_second_classes(self, state: InstanceState[Any]) -> None:
        """Expire the objects of other classes that are mapped on the row."""
        root = root_of(state.mapper)
        for other in self._documents.of(root).objects_of_row(state.identity or ()):
            if other is not state and other.session is self._session:
                self._expire_unchanged(other)

    def _finish_one(self, one: _Loaded) -> Iterator[str]:
        """Yield the pending changes that collide; what was not read of its row stays expired.

        A DELETE would overwrite each change that another has made.
        """
        loaded, columns = one.state.dict, one.state.mapper.columns
        if one.state in deleted_states(self._session):
            for name in one.values.keys() & loaded_columns(one.state).keys():
                if not columns[name].type.compare_values(one.values[name], loaded[name]):
                    yield name
                    set_committed_value(one.instance, name, one.values[name])
        for name, pending in one.pending.items():
            found = loaded.get(name, pending.read)
            if _is_other(one.state.mapper, name, pending, found):
                yield name  # and once more, should the program try again
                found = pending.read
            _set_pending(one, name, _Pending(pending.value, found))

    def keep_expired(self) -> None:
        """Leave all of it expired, for rows that are read one after the other from now on."""
        for one in self._expired:
            for name, pending in one.pending.items():
                _set_pending(one, name, pending)
        self._expired = []


@mapper_cache
def _raises(root: Mapper[Any]) -> bool:
    """Return whether headers of this root have parts that no access loads."""
    roles = (role_of(root, mapper) for mapper in root.self_and_descendants)
    return any(role is not None and role.raising for role in roles)


def may_overwrite(session: Session) -> bool:
    """Return whether the next flush may change or delete rows that were read."""
    return bool(modified_states(session) or deleted_states(session))


def loaded_columns(state: InstanceState[Any]) -> dict[str, Any]:
    """Return what is loaded of the columns of its row."""
    columns = state.mapper.columns
    return {
        name: value
        for name, value in state.dict.items()
        if name in columns and isinstance(columns[name], Column)
    }


@mapper_cache
def _columns_read_again(mapper: Mapper[Any]) -> frozenset[str]:
    """Return the attributes that are values of the row, except those of its key."""
    key = {mapper.get_property_by_column(column).key for column in mapper.primary_key}
    return frozenset(mapper.column_attrs.keys()) - key


def _is_other(mapper: Mapper[Any], name: str, pending: _Pending, found: Any) -> bool:
    """Return whether the row may have another value than the one that was read, if one was.

    Of a value that was changed in place nobody knows what was read.
    """
    if pending.read is LoaderCallableStatus.NO_VALUE:
        return is_mutable(pending.value)
    return not mapper.columns[name].type.compare_values(pending.read, found)


def is_mutable(value: Any) -> bool:
    """Return whether a value notifies SQLAlchemy when it is changed in place."""
    loaded = sys.modules.get("sqlalchemy.ext.mutable")  # its import listens to all mappers
    return loaded is not None and isinstance(value, loaded.MutableBase)


def _set_pending(one: _Loaded, name: str, pending: _Pending) -> None:
    one.state.dict[name] = pending.value
    flag_modified(one.instance, name)
    one.state.committed_state[name] = pending.read
