"""Rows that a locking SELECT reads without locking: after a wait, they are older than the lock.

PostgreSQL reads the other rows of a join, and those of subqueries, as they were when the statement
began. So parts of locked documents that it loads from them are read again, under the lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Result, inspect
from sqlalchemy.orm import InstanceState, Mapper, RelationshipDirection, undefer
from sqlalchemy.orm.attributes import instance_state, set_committed_value
from sqlalchemy.orm.collections import collection_adapter
from sqlalchemy.sql.visitors import iterate

from ..core.documents import (
    Part,
    columns_read,
    has_subquery,
    key_attributes,
    key_columns,
    mapper_cache,
    parts_of,
    root_of,
)
from ..core.loading import Unreadable, load_again, role_of
from ..core.locking import read_many
from ..core.statements import chunks, key_in
from ..core.transaction import LockContext, LockRequest
from ..keys import Identity
from ..sqlalchemy_internals import (
    buffer_rows,
    deleted_states,
    expressions_of,
    for_update_tables,
    has_limit,
    has_offset,
    loads_of,
    narrowed_by,
    options_of,
    without_lock,
)
from .changed_rows import is_held
from .for_update import base_of_from, inner_select, with_inner_select
from .unread_rows import is_part

State = InstanceState[Any]
_AFTER_THE_LOCK = ("selectin", "subquery", "immediate")  # loaded by SELECTs of their own


class RowsBeside:
    """Everything that one statement loaded of documents that were not locked before it.

    Creating this expires it, before the ledger has the locks.  Other objects' attributes stay
    loaded: under asyncio, and after ``raiseload()``, no access would load them.

    :param run: executes a statement with the program's options; None: the statement cannot run
        again.
    :param headers: the locked objects that the statement returned.
    :param objects: all objects that it returned.
    """

    def __init__(
        self,
        context: LockContext,
        statement: Any,
        run: Callable[[Any], Result[Any]] | None,
        headers: Iterable[State],
        objects: Iterable[Any],
    ) -> None:
        self._statement, self._run = statement, run
        self._context, self._session = context, context.session()
        select = inner_select(statement)
        options = (*options_of(statement), *options_of(select))
        self._strategies = dict(loads_of(options))
        self._narrowed = {*narrowed_by(options)}
        self._parts: Unreadable = {}
        self._chosen: list[tuple[State, Part, Sequence[tuple[Any, object]]]] = []
        self._named: dict[State, dict[str, object]] = {}
        self._unread: defaultdict[State, set[str]] = defaultdict(set)
        self._locked = dict.fromkeys(headers)
        of = frozenset(map(base_of_from, for_update_tables(select)))
        self._given = _expressions_beside(options, of)
        new = [state for state in self._locked if not is_held(context, state)]
        # The objects too: their values must live until the rows are read again.
        self._objects = {state: state.obj() for state in [*new, *map(instance_state, objects)]}
        for state in new:
            given = frozenset(name for root, name, _ in self._given if state.mapper.isa(root))
            self._expire(state, _columns_beside(state.mapper, of) | given)
            self._expire_parts_of(root_of(state.mapper), state)
        roots = {root_of(state.mapper) for state in new}
        for state in [*self._objects]:
            if any(is_part(root, state.mapper) for root in roots):
                self._expire_part(state)

    def _expire(self, state: State, names: frozenset[str]) -> None:
        unchanged = names & state.dict.keys() - state.committed_state.keys()
        if unchanged:
            self._session.expire(state.obj(), unchanged)
            self._unread[state].update(unchanged)

    def _expire_parts_of(self, root: Mapper[Any], state: State) -> None:
        """Expire the loaded parts of the object, and their parts, except changed ones."""
        for part in [*self._loaded_parts(root, state)]:
            members = _members(state, part)
            if self._narrowed.isdisjoint((part.relationship, "*")):
                self._parts.setdefault(part, []).append(state.obj())
                self._expire(state, frozenset((part.name,)))
            else:  # the program deliberately loaded only some members
                found = [
                    (member, _values(instance_state(member), part.attributes)) for member in members
                ]
                self._chosen.append((state, part, found))
            for detail in map(instance_state, members):
                if self._expire_part(detail):
                    self._expire_parts_of(root, detail)

    def _loaded_parts(self, root: Mapper[Any], state: State) -> Iterator[Part]:
        if role_of(root, state.mapper) is None:
            return
        unchanged = state.dict.keys() - state.committed_state.keys()
        for part in parts_of(root):
            if part.name not in unchanged or not state.mapper.isa(part.owner):
                continue
            strategy = self._strategies.get("*", part.relationship.lazy)
            strategy = self._strategies.get(part.relationship, strategy)
            # The strategies concern the headers only.
            if part.owner_path or strategy not in _AFTER_THE_LOCK:
                yield part

    def _expire_part(self, state: State) -> bool:
        """Expire the columns of a part; return False if it was done before, or if it has changes."""
        changed = state.modified or state in deleted_states(self._session)
        if state in self._named or changed or state.identity is None:
            return False
        self._named[state] = {
            name: _values(state, columns)
            for name, columns in _named_by_columns(state.mapper).items()
            if name in state.dict
        }
        self._objects[state] = state.obj()
        if state not in self._locked:
            names = frozenset(state.mapper.column_attrs.keys())
            self._expire(state, names.difference(key_attributes(state.mapper)))
        return True

    def read(self, request: LockRequest) -> None:
        """Read everything again, under the lock."""
        load_again(self._session, self._parts)
        for (mapper, deferred), keys in self._expired().items():
            options = [undefer(mapper.attrs[name].class_attribute) for name in deferred]
            read_many(self._context, mapper, keys, request._replace(options=options))
        for state, named in self._named.items():  # objects that the earlier foreign keys named
            others = (name for name, before in named.items() if before != self._now(state, name))
            self._expire(state, frozenset(others))
        for state, part, members in self._chosen:
            _leave_out_moved(state, part, members)
        if self._chosen and self._run is not None:
            self._read_new_members(self._run)
        elif self._given and self._run is not None:
            self._read_expressions(self._run)

    def _read_new_members(self, run: Callable[[Any], Result[Any]]) -> None:
        """Execute the SELECT again without its lock: it alone knows which members the program wants."""
        select = inner_select(self._statement)
        if has_limit(select) or has_offset(select):
            return  # other rows may come first now
        found = [(state, part, _members(state, part)) for state, part, _ in self._chosen]
        for state, part, _ in found:
            self._session.expire(state.obj(), [part.name])
        with self._session.no_autoflush:  # a colliding change must be refused, not sent
            buffer_rows(run(with_inner_select(self._statement, without_lock(select))))
        for state, part, members in found:
            if part.name not in state.dict:  # in no row: an access must not load all members
                value = members if part.relationship.uselist else next(iter(members), None)
                set_committed_value(state.obj(), part.name, value)

    def _read_expressions(self, run: Callable[[Any], Result[Any]]) -> None:
        """Execute the SELECT again without its lock, for its rows: it alone has the expressions."""
        select = without_lock(inner_select(self._statement)).limit(None).offset(None)
        for entity in dict.fromkeys(entity for _, _, entity in self._given):
            mapper = inspect(entity).mapper
            keys = [
                state.identity
                for state in self._unread
                if state.identity is not None and state.mapper.isa(mapper)
            ]
            for some in chunks(keys):
                with self._session.no_autoflush:
                    buffer_rows(run(select.where(key_in(key_columns(entity), some))))

    def _expired(self) -> Mapping[tuple[Mapper[Any], frozenset[str]], Sequence[Identity]]:
        """Return the keys of the rows to read, by class and deferred columns."""
        expired: defaultdict[tuple[Mapper[Any], frozenset[str]], list[Identity]] = defaultdict(list)
        given = {name for _, name, _ in self._given}
        for state, unread in self._unread.items():  # columns of a subclass may have expired before
            columns = unread.intersection(state.mapper.column_attrs.keys()) - given
            names = state.expired_attributes & columns
            if names and state.identity is not None:
                deferred = names - columns_read(state.mapper)
                expired[state.mapper, frozenset(deferred)].append(state.identity)
        return expired

    def _now(self, state: State, name: str) -> object:
        return _values(state, _named_by_columns(state.mapper)[name])


def _members(state: State, part: Part) -> list[Any]:
    value = state.dict[part.name]
    if part.relationship.uselist:
        return [*collection_adapter(value)]
    return [] if value is None else [value]


def _values(state: State, names: Iterable[str]) -> object:
    return [state.dict.get(name) for name in names]


def _leave_out_moved(state: State, part: Part, members: Sequence[tuple[Any, object]]) -> None:
    kept = [
        member for member, was in members if _values(instance_state(member), part.attributes) == was
    ]
    if len(kept) < len(members):
        value = kept if part.relationship.uselist else None
        set_committed_value(state.obj(), part.name, value)


def _expressions_beside(
    options: Iterable[Any], of: frozenset[Any]
) -> list[tuple[Mapper[Any], str, Any]]:
    return [
        (inspect(path).mapper, name, path.entity)
        for path, name, expression in expressions_of(options)
        if _is_beside(expression, of)
    ]


@mapper_cache
def _named_by_columns(mapper: Mapper[Any]) -> dict[str, list[str]]:
    """Return the many-to-one relationships, each with the attributes of its foreign key."""
    return {
        relationship.key: [
            mapper.get_property_by_column(column).key for column in relationship.local_columns
        ]
        for relationship in mapper.relationships
        if relationship.direction is RelationshipDirection.MANYTOONE
    }


@mapper_cache
def _columns_beside(mapper: Mapper[Any], of: frozenset[Any]) -> frozenset[str]:
    """Return the attributes that the database computes from other rows, or reads from other tables.

    :param of: the locked tables; empty: all of them.
    """
    return frozenset(
        attr.key
        for attr in mapper.column_attrs
        for column in attr.columns
        if _is_beside(column, of)
    )


def _is_beside(expression: Any, of: frozenset[Any]) -> bool:
    tables = (column.table for column in iterate(expression) if isinstance(column, Column))
    return has_subquery(expression) or bool(of and not of.issuperset(tables))
