"""The headers that a session had before the program's ``with_for_update()``, read again by it.

The statement itself refreshes the objects of its rows.  SQLAlchemy would then overwrite pending
changes, which exist without autoflush, and would leave attributes stale that loader options
exclude.  In both cases the statement fills in only missing attributes: the headers' loaded
attributes are expired while it runs, and restored in headers that it does not return.  In the
others, attributes that it did not read stay expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.attributes import flag_modified, instance_state, set_committed_value

from ..core.documents import mapper_cache, root_of
from ..core.loading import role_of
from ..core.transaction import LockContext
from ..sqlalchemy_internals import deleted_states, modified_states, refreshed_by
from .changed_rows import compare, is_held, only_columns


class _Pending(NamedTuple):
    value: Any
    read: Any


class _Loaded(NamedTuple):
    state: InstanceState[Any]
    instance: Any  # keeps it from being freed
    values: dict[str, Any]
    pending: dict[str, _Pending]
    related: dict[str, Any]


class LoadedHeaders:
    """The headers of some hierarchies in one session, during one statement.

    :param bind_arguments: those of the statement.
    :ivar read_again: locked objects that the session had before.
    """

    def __init__(
        self, context: LockContext, roots: frozenset[Mapper[Any]], bind_arguments: Mapping[str, Any]
    ) -> None:
        self._session: Session = context.session()
        self._context, self._bind_arguments = context, bind_arguments
        self._documents = context.loaded
        self.roots = roots
        self._expired: list[_Loaded] = []
        self._flushed = False
        self.read_again: list[InstanceState[Any]] = []

    def prepare(self, options: Mapping[str, Any], *, leaves_out: bool) -> Mapping[str, Any] | None:
        """Return the execution options with which the statement reads them again; None: its own.

        Call it after the autoflush.

        :param options: the program's execution options.
        :param leaves_out: the statement may not read all columns of its rows.
        """
        session = self._session
        for root in self.roots:
            self._documents.of(root)  # so that later objects can be distinguished
        refreshed = refreshed_by(options)
        if refreshed is not None:
            self._expire([refreshed])  # refresh() of some attributes leaves the others unread
        elif leaves_out or may_overwrite(session) or any(_raises(root) for root in self.roots):
            self._expire(session.identity_map.all_states())
        else:  # also if the program passed False, as Query.get() does
            return {**options, "populate_existing": True}
        return None

    def _expire(self, states: Iterable[InstanceState[Any]]) -> None:
        for state in states:
            if root_of(state.mapper) in self.roots and not is_held(self._context, state):
                self._expire_one(state, _columns_read_again(state.mapper) & state.dict.keys())

    def _expire_one(self, state: InstanceState[Any], columns: AbstractSet[str]) -> None:
        instance, loaded, changed = state.obj(), state.dict, state.committed_state
        if instance is None or not columns:
            return
        pending = {name: _Pending(loaded[name], changed[name]) for name in columns & changed.keys()}
        values = {name: loaded[name] for name in columns - pending.keys()}
        # Expired, not removed: a listener that reads it now loads it.
        self._session.expire(instance, columns)
        # Removed, as populate_existing does: expire() would invalidate a collection.
        unchanged = _related(state.mapper) & loaded.keys() - changed.keys()
        related = {name: loaded.pop(name) for name in unchanged}
        self._expired.append(_Loaded(state, instance, values, pending, related))

    def before_flush(self) -> None:
        """Restore the attributes of all objects before a listener's flush."""
        self._flushed = bool(self._expired)
        self.put_back()

    def put_back(self) -> None:
        """Restore the attributes of the objects that were not read since."""
        for expired in self._expired:
            if expired.state.session is not self._session:
                continue
            if not expired.state.expired:
                for name in expired.values.keys() - expired.state.dict.keys():
                    set_committed_value(expired.instance, name, expired.values[name])
                for name in expired.related.keys() - expired.state.dict.keys():
                    expired.state.dict[name] = expired.related[name]
            for name, pending in expired.pending.items():
                _set_pending(expired, name, pending)
        self._expired = []

    def finish(self, returned: Iterable[Any]) -> Sequence[tuple[InstanceState[Any], str]]:
        """Restore the attributes that the statement did not read.

        :param returned: the objects of its rows.
        :returns: the attributes with a pending change whose column others have changed.
        """
        states = dict.fromkeys(
            instance_state(instance) for instance in returned if instance is not None
        )
        self._note_locked(states)
        again = [expired for expired in self._expired if expired.state in states]
        self._expired = [expired for expired in self._expired if expired.state not in states]
        self.put_back()
        return [(expired.state, name) for expired in again for name in self._finish_one(expired)]

    def _note_locked(self, states: Iterable[InstanceState[Any]]) -> None:
        """Note objects that the session had, and expire attributes that the statement did not read."""
        for state in [found for found in states if not is_held(self._context, found)]:
            of_row = self._documents.of(root_of(state.mapper)).objects_of_row(state.identity or ())
            for other in of_row:  # of another class that maps the row
                if other is not state and other.session is self._session:
                    expire_unchanged(self._session, other)
            if self._documents.had(state):
                self.read_again.append(state)
                if self._flushed:
                    expire_unchanged(self._session, state)

    def _finish_one(self, expired: _Loaded) -> Iterator[str]:
        """Yield the pending changes that collide; unread attributes of its row stay expired.

        A DELETE would overwrite every change by others.
        """
        state, deleted = expired.state, expired.state in deleted_states(self._session)
        names = expired.pending.keys() | expired.values.keys()
        now = {name: state.dict[name] for name in names & state.dict.keys()}
        read = {name: pending.read for name, pending in expired.pending.items()}
        for name, pending in expired.pending.items():
            _set_pending(expired, name, pending)
        if deleted:
            read.update(only_columns(state.mapper, expired.values))
        collisions = compare(self._context, state, read, now, self._bind_arguments)
        for name in collisions:
            yield name
            if name in expired.values:  # again on the program's next try
                set_committed_value(expired.instance, name, expired.values[name])
        for name in expired.pending.keys() & now.keys() - {*collisions}:
            state.committed_state[name] = now[name]

    def keep_expired(self) -> None:
        """Leave everything expired: the rows are read one after the other from now on."""
        for expired in self._expired:
            for name, pending in expired.pending.items():
                _set_pending(expired, name, pending)
        self._expired = []


@mapper_cache
def _raises(root: Mapper[Any]) -> bool:
    """Return whether headers of this root have parts that no access loads."""
    roles = (role_of(root, mapper) for mapper in root.self_and_descendants)
    return any(role is not None and role.raising for role in roles)


def may_overwrite(session: Session) -> bool:
    """Return whether the next flush may change or delete rows that were read."""
    return bool(modified_states(session) or deleted_states(session))


def expire_unchanged(session: Session, state: InstanceState[Any]) -> None:
    """Expire the loaded attributes of its row, and the objects to which it refers, except pending changes."""
    names = _columns_read_again(state.mapper) | _related(state.mapper)
    unchanged = names & state.dict.keys() - state.committed_state.keys()
    if unchanged:
        session.expire(state.obj(), unchanged)


@mapper_cache
def _columns_read_again(mapper: Mapper[Any]) -> frozenset[str]:
    """Return the column attributes, except those of the key."""
    key = {mapper.get_property_by_column(column).key for column in mapper.primary_key}
    return frozenset(mapper.column_attrs.keys()) - key


@mapper_cache
def _related(mapper: Mapper[Any]) -> frozenset[str]:
    """Return the relationships that are no parts: a customer, whose key another session may have changed."""
    role = role_of(root_of(mapper), mapper)
    parts = frozenset() if role is None else {part.name for part in role.raising} | role.collections
    return frozenset(mapper.relationships.keys()) - parts


def _set_pending(expired: _Loaded, name: str, pending: _Pending) -> None:
    expired.state.dict[name] = pending.value
    flag_modified(expired.instance, name)
    expired.state.committed_state[name] = pending.read
