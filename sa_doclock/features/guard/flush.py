"""The guard for flushes: no write to a declared document without its ForUpdate lock.

The guard checks what a flush is about to write before anything is sent.  Listeners of the
program may change more after that, and the flush finds out more itself; so the guard checks
each row again when it has been written, and an error there undoes the flush.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy.orm import InstanceState
from sqlalchemy.orm.attributes import instance_state

from ...core.documents import Part, has_null, loaded_headers
from ...core.lock_info import Identity
from .full_check import FullCheck, WrittenRow, document_of_header, new_key_of
from .refusals import Refusals
from .rows import CheckedRows, RowsOfClass, States, Write, rows_by_class
from .rules import WriteRules, rules_for


class FlushGuard:
    """The guard of one session for the rows of its flushes."""

    def __init__(self, refusals: Refusals) -> None:
        self._session, self._refusals = refusals.session, refusals
        self._documents = refusals.documents
        self.checked = CheckedRows()

    def check_flush(self, rows: Iterable[RowsOfClass]) -> None:
        """Raise UnlockedWrite if the flush would write to a document that is not held ForUpdate."""
        self.checked.clear()
        if not self._refusals.unguarded:
            self._check(rows, None)

    def check_objects(self, instances: Collection[Any]) -> None:
        """Check objects that are written without a flush."""
        if self._refusals.active:
            states = [instance_state(one) for one in instances]
            new = [state for state in states if state.key is None]
            changed = [state for state in states if state.key is not None]
            self._check(rows_by_class(new, changed, ()), new)

    def check_row(self, state: InstanceState[Any], write: Write) -> None:
        """Check one row that a flush has written, and that an error takes back.

        Not one that is ``checked``.
        """
        rules = rules_for(state.mapper)
        if rules is None:
            return
        if self._refusals.active and not self._is_held(rules, state, write):
            check = FullCheck(self._refusals, self._session(), written=True)
            check.check([(state, rules, write)])
        if write is Write.INSERT:
            self.add_inserted(state)
        elif write is Write.UPDATE:
            self._add_new_key(state, rules)

    def _add_new_key(self, state: InstanceState[Any], rules: WriteRules) -> None:
        key = new_key_of(state, rules)
        if key is not None:
            self._documents.add_key((rules.entity, state.identity or ()), key)

    def _check(self, rows: Iterable[RowsOfClass], new: States | None) -> None:
        self._refusals.reset_warnings()
        to_check: list[WrittenRow] = []
        for write, rules, states in rows:
            # The others are held, as what is loaded shows.
            if write is not Write.UPDATE:
                to_check += self._not_held(rules, states, write)
            elif self._all_are_held(rules, states):
                self.checked.add(states, rules.checked)
            else:
                to_check += self._changes_not_held(rules, states)
        if to_check:
            FullCheck(self._refusals, self._session(), new).check(to_check)

    def _not_held(self, rules: WriteRules, states: States, write: Write) -> Iterator[WrittenRow]:
        for state in states:
            if not self._is_held(rules, state, write):
                yield state, rules, write

    def _changes_not_held(self, rules: WriteRules, states: States) -> Iterator[WrittenRow]:
        for state in states:
            if self._is_held(rules, state, Write.UPDATE):
                self.checked.add((state,), rules.checked)
            else:
                yield state, rules, Write.UPDATE

    def _all_are_held(self, rules: WriteRules, states: States) -> bool:
        """Return whether _is_held() is true of all these changes, without its calls for each."""
        headers = rules.headers_of_changed(states)
        if headers is None:
            return False
        return all(self._documents.may_write((rules.entity, header)) for header in headers)

    def _is_held(self, rules: WriteRules, state: InstanceState[Any], write: Write) -> bool:
        """Return whether what is loaded shows that the document is held, as it mostly does."""
        if write is Write.DELETE:
            moved = not rules.moves.isdisjoint(state.committed_state)
            return not rules.deletes and not moved and self._row_is_held(rules, state)
        changed = state.committed_state
        if rules.updates and not rules.updates.keys().isdisjoint(changed):
            return False
        if state.key is None:
            return rules.header or self._new_row_is_held(rules, state)
        return rules.moves.isdisjoint(changed) and self._row_is_held(rules, state)

    def _row_is_held(self, rules: WriteRules, state: InstanceState[Any]) -> bool:
        may_write, entity, loaded = self._documents.may_write, rules.entity, state.dict
        if rules.header:
            return may_write((entity, state.identity or ()))
        if rules.direct is not None:
            return may_write((entity, _direct_header(rules.direct, loaded)))
        if rules.root is None:
            return True
        headers = list(loaded_headers(self._session(), rules.root, state.mapper, loaded))
        return bool(headers) and all(may_write((entity, header)) for header in headers)

    def _new_row_is_held(self, rules: WriteRules, state: InstanceState[Any]) -> bool:
        entity, loaded = rules.entity, state.dict
        if rules.direct is None:
            return rules.root is None
        header = _direct_header(rules.direct, loaded)
        if not has_null(header) and not self._documents.may_write((entity, header)):
            return False
        backrefs = rules.direct.backrefs
        owners = (owner for name in backrefs if (owner := loaded.get(name)) is not None)
        return all(self._is_new_or_held(entity, instance_state(owner)) for owner in owners)

    def _is_new_or_held(self, entity: type[Any], owner: InstanceState[Any]) -> bool:
        if owner.identity is None:
            return owner.pending
        return self._documents.may_write((entity, owner.identity))

    def add_inserted(self, state: InstanceState[Any]) -> None:
        """Record an inserted row: a new header belongs to this transaction alone."""
        document = document_of_header(state) if self._refusals.enabled else None
        if document is not None and not has_null(document[1]):
            self._documents.add_inserted(document)


def _direct_header(part: Part, loaded: Mapping[str, Any]) -> Identity:
    # A list, since a generator costs more than all the rest here.
    return tuple([loaded.get(name) for name in part.foreign_key or ()])
