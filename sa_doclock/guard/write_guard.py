"""The write guard of each session; it listens to the rows of documents only.

It checks what a flush is about to write before anything is sent.  The program's listeners may
change more after that, and the flush itself adds changes; so the guard checks each row again after
it is written, and an error there undoes the flush.

A statement shows to which database and schema it goes, by its execution options and its connection,
whether a flush, a bulk method or an execute() sends it.  Rows elsewhere than the locked documents
are refused when it is sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, compress, filterfalse, repeat
from operator import attrgetter, is_, itemgetter
from threading import Lock
from typing import Any, Final
from weakref import ReferenceType, WeakSet, ref

from sqlalchemy import Connection, Delete, Insert, Table, Update, event, insert, update
from sqlalchemy.engine import Compiled
from sqlalchemy.orm import InstanceState, Mapper, Session, class_mapper
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.interfaces import EXT_CONTINUE

from ..core.documents import (
    any_declared,
    has_null,
    key_attributes,
    listen_for_documents,
    mapper_cache,
    notify_in_time,
)
from ..core.ledger import place_of
from ..core.same_tables import (
    document_tables,
    is_class_elsewhere,
    is_of_other_model,
    mapped_table,
    roots_named,
)
from ..core.transaction import CompiledCheck, LockContext, Noting, check_statements, state_of
from ..keys import DocumentKey
from ..sqlalchemy_internals import (
    all_mappers,
    allow_listening,
    deleted_states,
    modified_states,
    new_states,
)
from ..versions import expire_versions
from .dml import checked_write
from .full_check import FullCheck, WrittenRow, document_of_header, new_key_of
from .refusals import GuardMemory, Refusal, Refusals
from .rules import States, WriteRules, rules_for
from .targets import Row, Way, Write

# Threads: the thread that uses a session sets its entry.
_memories: Final[dict[int | None, ReferenceType[GuardMemory]]] = {}
"""The memories of guards whose transaction has flushed, by the session's ``hash_key``, which its
rows have as ``session_id``.

Not a WeakValueDictionary, which takes three times as long for each row.
"""

# A flush may have thousands of rows: unlike a mapper, a class is hashed in C.
_class_of: Final = attrgetter("class_")

Rows = tuple[Way, WriteRules, States]
"""Rows of one class, all written in one way."""


class WriteGuard(Refusals):
    """The guard of one session."""

    def before_flush(self, session: Session) -> None:
        """See :class:`Guard`.

        :raises UnlockedWrite: it would write to a document that is not locked ForUpdate.
        """
        if not any_declared():
            return
        notify_in_time()  # before any check, listen to the rows of all documents
        memory = self.memory
        memory.held, memory.written = {}, None
        deleted = deleted_states(session)
        changed = modified_states(session).difference(deleted)
        rows = _by_class(session, new_states(session), changed, deleted)
        if rows:
            key = session.hash_key
            known = _memories.get(key)  # no other session has this key
            if known is None or known() is not memory:
                _memories[key] = ref(memory, partial(_memories.pop, key))
            if not self.unguarded:
                self._check_rows(session, rows, memory)

    def _check_rows(self, session: Session, rows: Sequence[Rows], memory: GuardMemory) -> None:
        self.reset_warnings()
        documents: set[DocumentKey] = set()
        unclear: list[Rows] = []
        for group in rows:
            way, rules, states = group
            # The table may set the owner's key, unseen by later checks: a new row shows its document
            # when it is checked again, but an old one does not show that it has moved.
            late = way is Way.UPDATE and rules.late
            headers = None if late else rules.headers_of(session, way, states)
            if headers is None:
                unclear.append(group)
            else:
                documents.update(zip(repeat(rules.entity), headers))
            # Known only after the write: a new row's header, and an untold row's document.
            if way is not Way.INSERT and not (late or (rules.untold and rules.root is not None)):
                memory.held.update(dict.fromkeys(states, rules))
        to_check = unclear if all(map(self.may_write, documents)) else rows
        if to_check:
            written = (
                map(WrittenRow, states, repeat(rules), repeat(way))
                for way, rules, states in to_check
            )
            FullCheck(self).check(chain.from_iterable(written))

    def check_row(self, state: InstanceState[Any], way: Way) -> None:
        """Check one row that a flush has written, and that an error undoes.

        Rows in ``held`` are not checked.
        """
        rules = rules_for(state.mapper)
        if rules is None or (rules.other and _is_elsewhere(self.session(), state.class_)):
            return
        # A new object in place of a deleted one: SQLAlchemy updates the existing row.
        judged = Way.INSERT if state.key is None else way
        if not (self.unguarded or self._is_held_as_written(judged, rules, state)):
            memory = self.memory
            memory.written = memory.written or FullCheck(self, written=True)
            memory.written.check([WrittenRow(state, rules, judged)])
        if not rules.keys:
            return  # no header
        if way is Way.INSERT:
            self._add_header(state)
        elif way is Way.UPDATE:
            self.add_key((rules.entity, state.identity or ()), new_key_of(state, rules))

    def _is_held_as_written(self, way: Way, rules: WriteRules, state: InstanceState[Any]) -> bool:
        unread = rules.columns.intersection(state.expired_attributes)
        if rules.untold or not rules.moves.isdisjoint(unread):
            return False  # only the database knows the written values
        if way is Way.INSERT and rules.direct is not None and not rules.updates:
            # Most are new parts, whose foreign key is set now, whatever their owner was.
            header = tuple(map(state.dict.get, rules.direct.foreign_key or ()))
            if self.may_write((rules.entity, header)):
                return True
        headers = rules.headers_of(self.session(), way, [state])
        return headers is not None and all(map(self.may_write, zip(repeat(rules.entity), headers)))

    def _add_header(self, state: InstanceState[Any]) -> None:
        """Record an inserted header: it belongs to this transaction alone."""
        document = document_of_header(state) if self.enabled else None
        if document is not None and not has_null(document[1]):
            self.add_inserted(document)

    def around_dml(self, statement: Any, parameters: Any, how: Mapping[str, Any]) -> Noting:
        """See :class:`Guard`.

        :raises UnlockedWrite: it would write to a document that is not held ForUpdate.
        """
        return checked_write(self, Write(statement, parameters, how))

    @contextmanager
    def around_objects(self, objects: Collection[Any]) -> Iterator[None]:
        """See :class:`Guard`.

        :raises UnlockedWrite: one of them is of a document that is not held ForUpdate.
        """
        states = [*map(instance_state, objects)]
        new = [state for state in states if state.key is None]
        coming = {*map(document_of_header, new)} if self.enabled else set()
        with ExitStack() as checks:
            for write in _writes_of(states) if self.enabled else ():
                checks.enter_context(checked_write(self, write, coming))
            yield
        for state in new:
            self._add_header(state)

    @contextmanager
    def around_unguarded(self) -> Iterator[None]:
        """See :class:`Guard`: check nothing in this block."""
        self.unguarded += 1
        try:
            yield
        finally:
            self.unguarded -= 1

    def roll_back(self) -> None:
        """See :class:`Guard`: raised versions may be undone."""
        if self.memory.raised:
            expire_versions(self.session(), self.memory.raised)


def _writes_of(states: Iterable[InstanceState[Any]]) -> Iterator[Write]:
    """Yield the INSERTs and UPDATEs of these objects' own columns, one of each for a class."""
    found: defaultdict[Any, dict[InstanceState[Any], Row]] = defaultdict(dict)
    for state in states:
        mapper, new = state.mapper, state.key is None
        names = state.dict.keys() if new else state.committed_state.keys()
        row = {name: state.dict.get(name) for name in names if name in mapper.column_attrs}
        if new or row:
            key = dict(zip(key_attributes(mapper), state.identity or (), strict=not new))
            found[mapper, insert if new else update][state] = {**row, **key}
    for (mapper, statement), rows in found.items():
        loaded = {state.identity: state for state in rows if state.identity is not None}
        how = {"execution_options": {"autoflush": False}}
        yield Write(statement(mapper.class_), [*rows.values()], how, loaded)


def _by_class(session: Session, new: States, changed: States, deleted: States) -> Sequence[Rows]:
    """Return the rows that the guard checks, by class."""
    rows: list[Rows] = []
    ways = (Way.INSERT, new), (Way.UPDATE, changed), (Way.DELETE, deleted)
    for way, states in filter(itemgetter(1), ways):  # most flushes are of one kind
        for entity in dict.fromkeys(map(_class_of, states)):
            rules = _rules_of_class(entity)
            if rules is not None and not (rules.other and _is_elsewhere(session, entity)):
                of_class = map(is_, map(_class_of, states), repeat(entity))
                rows.append((way, rules, [*compress(states, of_class)]))
    return rows


def _is_elsewhere(session: Session, entity: type[Any]) -> bool:
    return is_class_elsewhere(session, class_mapper(entity, configure=False))


@mapper_cache
def _rules_of_class(entity: type[Any]) -> WriteRules | None:
    return rules_for(class_mapper(entity, configure=False))


# Global, like mappers: one listener per mapper serves all sessions of the process.
# Threads: read and changed under the lock.
_followed: WeakSet[Mapper[Any]] = WeakSet()
_following = Lock()  # held until the listeners of a followed mapper are in place


@listen_for_documents
def _follow(_mappers: Collection[Mapper[Any]]) -> None:
    """Listen to each class whose rows the guard checks; called again when it has more."""
    with _following:
        for mapper in filterfalse(_followed.__contains__, _checked_mappers()):
            _followed.add(mapper)
            for name, check in _WRITES.items():
                allow_listening([mapper], name)
                # With retval: otherwise SQLAlchemy adds a wrapper, at the cost of a call per row.
                event.listen(mapper, name, check, raw=True, retval=True)


@mapper_cache
def _checked_mappers() -> Collection[Mapper[Any]]:
    """Return the classes with rows in a table of documents."""
    tables = document_tables()
    return [
        mapper
        for mapper in all_mappers()
        if any(mapped_table(table) in tables for table in mapper.tables)
    ]


def _memory_of(state: InstanceState[Any]) -> GuardMemory | None:
    """Return the guard's memory of a session whose flush began before any document was declared."""
    session = state.session  # a search, once per row even in a plain Session
    context = None if session is None else state_of(session)
    guard = None if context is None else context.parts.guard
    return guard.memory if isinstance(guard, WriteGuard) else None


def _unless_held(way: Way, *, before: bool = False) -> Callable[..., Any]:
    """Return the listener that checks a row, unless its documents were locked when the flush began.

    :param before: the row is not written yet; the documents that it joins are checked later.
    """

    def check(_mapper: Mapper[Any], _connection: Connection, state: InstanceState[Any]) -> Any:
        found = _memories.get(state.session_id)
        memory = found() if found else _memory_of(state)
        if memory is not None:
            rules = memory.held.get(state)
            # A value that was written as an SQL expression has expired, and is no longer a change.
            if rules is None or not (
                before
                or (
                    rules.checked.isdisjoint(state.committed_state)
                    and rules.columns.isdisjoint(state.expired_attributes)
                )
            ):
                memory.guard.check_row(state, way)
        return EXT_CONTINUE

    return check


# After a row is written, no hook can change it any more, and raising undoes it.  Before, the
# database still has the old values of an expired row.
_WRITES = {
    "after_insert": _unless_held(Way.INSERT),
    "before_update": _unless_held(Way.UPDATE, before=True),
    "after_update": _unless_held(Way.UPDATE),
    "before_delete": _unless_held(Way.DELETE),
}


def _check_of(compiled: Compiled) -> CompiledCheck | None:
    ctes = getattr(compiled, "ctes", None) or ()
    written = [
        statement.table
        for statement in (compiled.statement, *(cte.element for cte in ctes))
        if isinstance(statement, Insert | Update | Delete)
    ]
    tables = [(table, root) for table in written for root in roots_named(table)]
    return CompiledCheck(partial(_check, tables), in_calls=False) if tables else None


def _check(tables: Sequence[tuple[Any, Mapper[Any]]], state: LockContext, context: Any) -> None:
    guard = state.parts.guard
    if not isinstance(guard, WriteGuard) or guard.unguarded:
        return
    place = place_of(context.root_connection, context.execution_options)
    default = context.dialect.default_schema_name
    for table, root in tables:
        held = state.ledger.place_of(root.class_)
        mapped = place.schemas.get(table.schema, table.schema) or default
        if not isinstance(table, Table) and mapped != (table.schema or default):
            where = place._replace(schemas={})
            did = f"would write rows of {table.name} in {where} by table(), to which schema_translate_map does not apply,"
        elif held is None:
            state.ledger.check_place(root, context.root_connection, context.execution_options)
            continue
        elif held.is_same(place) or (
            # A table of this name in another database may belong to another model.
            held.engine is not place.engine
            and is_of_other_model(guard.session(), root, table, place.engine)
        ):
            continue
        else:
            did = f"would write rows of {table.name} in {place}, but the locked rows are in {held},"
        guard.refuse(Refusal(root, (), "a statement", did))


check_statements(_check_of)
