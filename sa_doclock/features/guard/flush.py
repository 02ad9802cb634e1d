"""The guard for flushes: no write to a declared document without its ForUpdate lock.

The guard checks what a flush is about to write before anything is sent.  Listeners of the
program may change more after that, and the flush finds out more itself; so the guard checks
each row again when it has been written, and an error there undoes the flush.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import compress, repeat
from operator import attrgetter, is_, itemgetter
from typing import Any, Final
from weakref import WeakValueDictionary

from sqlalchemy.orm import InstanceState, Session, class_mapper
from sqlalchemy.orm.attributes import instance_state

from ...core.documents import has_null, mapper_cache
from ...core.sqlalchemy_internals import states_to_flush
from .full_check import FullCheck, WrittenRow, document_of_header, new_key_of
from .refusals import Refusals
from .rules import States, WriteRules, rules_for
from .writes import Generated, Write

# Threads: an entry is set once, by the thread that uses its session.
guards: Final[WeakValueDictionary[int | None, FlushGuard]] = WeakValueDictionary()
"""The guards of flushes, by the ``hash_key`` of the session, which is the ``session_id`` of its rows."""

# A flush may have thousands of rows: a class, and no mapper, has its hash from C.
_class_of: Final = attrgetter("class_")

Rows = Sequence[tuple[Write, WriteRules, States]]
"""Rows by the kind of their write and by their class."""


class FlushGuard:
    """The guard of one session for the rows of its flushes.

    :ivar held: the changed and deleted rows whose documents were held when the flush began, each with
        the attributes by which it comes to another document; such a row is not checked again, unless
        one of them has changed meanwhile.
    """

    def __init__(self, refusals: Refusals) -> None:
        self.refusals, self._session = refusals, refusals.session
        self.documents = refusals.documents
        self.held: dict[InstanceState[Any], frozenset[str]] = {}
        guards[refusals.session().hash_key] = self

    def check_flush(self, session: Session) -> None:
        """Raise UnlockedWrite if the flush would write to a document that is not held ForUpdate."""
        self.held.clear()
        if not self.refusals.unguarded:
            self.refusals.reset_warnings()
            self.check_rows(rows_to_flush(session))

    def check_objects(self, instances: Collection[Any]) -> None:
        """Check objects that are written without a flush."""
        if self.refusals.active:
            self.refusals.reset_warnings()
            states = [instance_state(one) for one in instances]
            new = [state for state in states if state.key is None]
            changed = [state for state in states if state.key is not None]
            self.check_rows(_by_class(new, changed, ()), new)

    def check_row(self, state: InstanceState[Any], write: Write) -> None:
        """Check one row that a flush has written, and that an error takes back.

        Not one that was ``held``.
        """
        rules = rules_for(state.mapper)
        if rules is None:
            return
        # A new object in place of a deleted one: SQLAlchemy updates the row that was there.
        judged = Write.INSERT if state.key is None else write
        if not (self.refusals.unguarded or self._row_is_held(judged, rules, state)):
            check = FullCheck(self.refusals, self._session(), written=True)
            check.check([(state, rules, judged)])
        if not rules.keys:
            return  # no header
        if write is Write.INSERT:
            self.add_inserted(state)
        elif write is Write.UPDATE:
            self._add_new_key(state, rules)

    def _row_is_held(self, write: Write, rules: WriteRules, state: InstanceState[Any]) -> bool:
        if rules.untold or not rules.moves.isdisjoint(state.expired_attributes):
            return False  # only the database knows what was written
        if write is Write.INSERT and rules.direct is not None and not rules.updates:
            # Most are new parts, whose foreign key is set by now, whatever they had for an owner.
            header = tuple(map(state.dict.get, rules.direct.foreign_key or ()))
            if self.documents.may_write((rules.entity, header)):
                return True
        return self._are_held(write, rules, [state])

    def _add_new_key(self, state: InstanceState[Any], rules: WriteRules) -> None:
        key = new_key_of(state, rules)
        if key is not None:
            self.documents.add_key((rules.entity, state.identity or ()), key)

    def check_rows(self, rows: Rows, along: States | None = None) -> None:
        """Check these rows.

        :param along: objects that are inserted along; None: all new ones of the session.
        """
        to_check: list[WrittenRow] = []
        for write, rules, states in rows:
            if write is not Write.INSERT:  # which header a new row names is known afterwards
                self.held.update(dict.fromkeys(states, rules.checked))
            late = rules.generated is not None and _is_seen_too_late(
                write, rules.generated, flushed=along is None
            )
            if late or not self._are_held(write, rules, states):
                to_check += self._not_held(write, rules, states, late=late)
        if to_check:
            FullCheck(self.refusals, self._session(), along).check(to_check)

    def _not_held(
        self, write: Write, rules: WriteRules, states: States, *, late: bool
    ) -> Iterator[WrittenRow]:
        """Yield those of these rows whose documents may not be held; all, if the check is too late."""
        for state in states:
            if late or not self._are_held(write, rules, [state]):
                if rules.root is not None or not rules.untold:
                    self.held.pop(state, None)  # its own class tells more when it is written
                yield state, rules, write

    def _are_held(self, write: Write, rules: WriteRules, states: States) -> bool:
        """Return whether what is loaded shows that the documents of all these rows are held."""
        headers = rules.headers_of(self._session(), write, states)
        if headers is None:
            return False
        return all(map(self.documents.may_write, zip(repeat(rules.entity), headers)))

    def add_inserted(self, state: InstanceState[Any]) -> None:
        """Record an inserted row: a new header belongs to this transaction alone."""
        document = document_of_header(state) if self.refusals.enabled else None
        if document is not None and not has_null(document[1]):
            self.documents.add_inserted(document)


def _is_seen_too_late(write: Write, generated: Generated, *, flushed: bool) -> bool:
    """Return whether the table may set what names the owner, which no check after it would tell.

    :param flushed: each row is checked again when it is written; a new one tells its document then,
        an old one not that it has come to another.
    """
    checked_after = flushed and write is Write.INSERT
    return bool(generated.by(write)) and not checked_after


def rows_to_flush(session: Session) -> Rows:
    """Return the rows that the session would flush now, but for those that the guard never checks."""
    new, modified, deleted = states_to_flush(session)
    return _by_class(new, modified - deleted, deleted)


def _by_class(new: States, changed: States, deleted: States) -> Rows:
    """Return these rows by their class, but for those that the guard never checks."""
    rows: list[tuple[Write, WriteRules, States]] = []
    ways = (Write.INSERT, new), (Write.UPDATE, changed), (Write.DELETE, deleted)
    for write, states in filter(itemgetter(1), ways):  # most flushes are of one kind
        for entity in dict.fromkeys(map(_class_of, states)):
            rules = _rules_of_class(entity)
            if rules is not None:
                of_class = map(is_, map(_class_of, states), repeat(entity))
                rows.append((write, rules, [*compress(states, of_class)]))
    return rows


@mapper_cache
def _rules_of_class(entity: type[Any]) -> WriteRules | None:
    return rules_for(class_mapper(entity, configure=False))
