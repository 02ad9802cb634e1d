"""The headers that a session had before the program's own ``with_for_update()``, read again by it.

SQLAlchemy fills in only what an object lacks.  So the loaded values are taken out of the objects
while the statement runs: it fills in those of the rows that it returns, and all others get their
values back.  Nothing more is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from sqlalchemy import event
from sqlalchemy.orm import InstanceState, LoaderCallableStatus, Mapper, Session
from sqlalchemy.orm.attributes import flag_modified, set_committed_value

from ...options import LockOptions
from ..documents import document_key, mapper_cache, root_of
from ..transaction import Ledger

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

    :param checks_version: the statement is of ``Session.get()`` or ``refresh()``.
    :ivar read_again: those that the session had, and that the statement has locked.
    """

    def __init__(
        self,
        session: Session,
        ledger: Ledger,
        roots: Iterable[Mapper[Any]],
        *,
        checks_version: bool,
    ) -> None:
        self._session = session
        self._ledger = ledger
        self.roots = frozenset(roots)
        self._loaded: list[_Loaded] = []
        self._checks_version = checks_version
        self.read_again: Sequence[InstanceState[Any]] = ()

    @contextmanager
    def taken_out(self, *, overwritten: bool) -> Iterator[None]:
        """Take the values out of the objects in the block, except while the session flushes.

        :param overwritten: the statement fills in every object anew, as ``Session.get()`` has it, so
            that only pending changes have to be kept from it.
        """
        session = self._session
        changed = bool(session.new or session.dirty or session.deleted)

        def before_flush(*_: object) -> None:
            self._put_back()

        def after_flush(*_: object) -> None:
            self._take_out(overwritten=overwritten)

        if changed:  # the statement may flush them first, and a flush needs the values
            event.listen(session, "before_flush", before_flush)
            event.listen(session, "after_flush_postexec", after_flush)
        try:
            self._take_out(overwritten=overwritten)
            yield
        except BaseException:
            self._put_back()
            raise
        finally:
            if changed:
                event.remove(session, "before_flush", before_flush)
                event.remove(session, "after_flush_postexec", after_flush)

    def _take_out(self, *, overwritten: bool) -> None:
        for state in self._session.identity_map.all_states():
            if root_of(state.mapper) not in self.roots or self._is_held(state):
                continue
            # SQLAlchemy compares the version by itself there: StaleDataError, if it is another.
            if not (self._checks_version and state.mapper.version_id_col is not None):
                columns = _columns_read_again(state.mapper)
                if overwritten:
                    columns = columns & state.committed_state.keys()
                self._take_out_one(state, columns)

    def _is_held(self, state: InstanceState[Any]) -> bool:
        """Return whether a lock has kept others from changing the row since it was read."""
        held = self._ledger.held.get(document_key(state.mapper, state.identity or ()))
        return held is not None and bool(held & _KEEPS_OTHERS_OUT)

    def _take_out_one(self, state: InstanceState[Any], columns: frozenset[str]) -> None:
        instance, loaded, changed = state.obj(), state.dict, state.committed_state
        names = columns & loaded.keys()
        if instance is None:
            return
        values = {name: loaded.pop(name) for name in names}
        pending = {
            name: _Pending(values.pop(name), changed.pop(name)) for name in names & changed.keys()
        }
        self._loaded.append(_Loaded(state, instance, values, pending))

    def _put_back(self) -> None:
        """Give every object its values back, those that were read meanwhile excepted."""
        for one in self._loaded:
            if one.state.session is self._session and not one.state.expired:
                for name in one.values.keys() - one.state.dict.keys():
                    set_committed_value(one.instance, name, one.values[name])
                for name, pending in one.pending.items():
                    _set_pending(one, name, pending)
        self._loaded = []

    def finish(self, returned: Sequence[Any]) -> Sequence[tuple[InstanceState[Any], str]]:
        """Give the objects back what the statement has not read.

        :param returned: the objects of its rows.
        :returns: the attributes with a pending change whose column another has changed meanwhile.
        """
        locked = set(map(id, returned))
        again = [one for one in self._loaded if id(one.instance) in locked]
        self._loaded = [one for one in self._loaded if id(one.instance) not in locked]
        self._put_back()
        self.read_again = [one.state for one in again]
        return [(one.state, name) for one in again for name in self._finish_one(one)]

    def _finish_one(self, one: _Loaded) -> Iterator[str]:
        """Expire what the statement has not read of its row; yield the changes that collide."""
        loaded = one.state.dict
        unread = one.values.keys() - loaded.keys()
        if unread:
            self._session.expire(one.instance, unread)
        for name, (value, read) in one.pending.items():
            found = loaded.get(name, read)
            if _is_other(one.state.mapper, name, read, found):
                yield name
            _set_pending(one, name, _Pending(value, found))

    def expire(self) -> None:
        """Expire what was loaded, for rows that are read one after the other from now on."""
        for one in self._loaded:
            self._session.expire(one.instance, one.values)
            for name, pending in one.pending.items():
                _set_pending(one, name, pending)
        self._loaded = []


@mapper_cache
def _columns_read_again(mapper: Mapper[Any]) -> frozenset[str]:
    """Return the attributes that are values of the row, except those of its key."""
    key = {mapper.get_property_by_column(column).key for column in mapper.primary_key}
    return frozenset(mapper.column_attrs.keys()) - key


def _is_other(mapper: Mapper[Any], name: str, read: Any, found: Any) -> bool:
    """Return whether the row has another value than the one that was read, if one was."""
    return read is not LoaderCallableStatus.NO_VALUE and not mapper.columns[
        name
    ].type.compare_values(read, found)


def _set_pending(one: _Loaded, name: str, pending: _Pending) -> None:
    one.state.dict[name] = pending.value
    flag_modified(one.instance, name)
    one.state.committed_state[name] = pending.read
