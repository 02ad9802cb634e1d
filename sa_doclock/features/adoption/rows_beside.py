"""The rows that a locking SELECT reads beside those that it locks: older than the lock, after a wait.

PostgreSQL reads the other rows of a join, and those of subqueries, as they were when the statement began.
So what it has loaded of the locked documents from them is read once more, under the lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy.orm import InstanceState, Mapper
from sqlalchemy.orm.attributes import instance_state, set_committed_value
from sqlalchemy.orm.collections import collection_adapter

from ...core.documents import Part, document_key, has_subquery, mapper_cache, parts_of, root_of
from ...core.loading import Unreadable, load_again, role_of
from ...core.locking import read_many
from ...core.sqlalchemy_internals import for_update_tables, loads_of, options_of
from ...core.transaction import LockContext, LockRequest
from .for_update import inner_select
from .locked_froms import base_of_from

State = InstanceState[Any]


class RowsBeside:
    """All that one statement has loaded of documents that were not held before it.

    It is expired when this is made, before the ledger has the locks.

    :param headers: the locked objects that the statement has returned.
    :param objects: all objects that it has returned.
    """

    def __init__(
        self, context: LockContext, statement: Any, headers: Iterable[State], objects: Iterable[Any]
    ) -> None:
        self._context, self._session = context, context.session()
        self._objects = [*objects]
        self._parts: Unreadable = {}
        self._chosen: list[tuple[Any, str, Any]] = []
        select = inner_select(statement)
        # By contains_eager() the program may have left members out, and means to.
        loads = loads_of((*options_of(statement), *options_of(select)))
        self._contained = {found for found, strategy in loads if strategy == "contained"}
        of = frozenset(map(base_of_from, for_update_tables(select)))
        by_root: dict[Mapper[Any], list[State]] = {}
        for state in dict.fromkeys(headers):
            if document_key(state.mapper, state.identity or ()) not in context.ledger.held:
                self._expire_columns(state, of)
                by_root.setdefault(root_of(state.mapper), []).append(state)
        for root, states in by_root.items():
            self._expire_parts(root, states)

    def _expire_columns(self, state: State, of: frozenset[Any]) -> None:
        names = _columns_beside(state.mapper, of) & state.dict.keys() - state.committed_state.keys()
        if names:
            self._session.expire(state.obj(), names)

    def _expire_parts(self, root: Mapper[Any], states: Sequence[State]) -> None:
        for state in states:
            self._note_loaded(root, state)
        identities = [state.identity or () for state in states]
        found = self._context.loaded.of(root).expire(identities, parts_alone=True)
        for part, owners in found.items():
            self._parts.setdefault(part, []).extend(owners)

    def _note_loaded(self, root: Mapper[Any], state: State) -> None:
        """Note the parts that the object has loaded, without pending changes: they come back loaded."""
        role = role_of(root, state.mapper)
        loaded = state.dict.keys() - state.committed_state.keys()
        names = loaded & role.collections if role is not None else frozenset[str]()
        for part in parts_of(root):
            if part.name not in names or not state.mapper.isa(part.owner):
                continue
            if part.relationship in self._contained:
                self._keep_members(state, part)
            else:
                self._parts.setdefault(part, []).append(state.obj())

    def _keep_members(self, state: State, part: Part) -> None:
        value = state.dict[part.name]
        if part.relationship.uselist:
            value = [*collection_adapter(value)]
        self._objects += value if isinstance(value, list) else [value]
        self._chosen.append((state.obj(), part.name, value))

    def read(self, request: LockRequest) -> None:
        """Read it again, under the lock."""
        load_again(self._session, self._parts)
        for owner, name, value in self._chosen:
            set_committed_value(owner, name, value)
        expired: defaultdict[Mapper[Any], list[Any]] = defaultdict(list)
        for state in self._expired():
            expired[state.mapper].append(state.identity)
        for mapper, keys in expired.items():
            read_many(self._context, mapper, keys, request)

    def _expired(self) -> Iterator[State]:
        for state in dict.fromkeys(
            map(instance_state, (one for one in self._objects if one is not None))
        ):
            if state.expired_attributes and state.identity is not None:
                yield state


@mapper_cache
def _columns_beside(mapper: Mapper[Any], of: frozenset[Any]) -> frozenset[str]:
    """Return the attributes that the database computes from other rows, or reads from other tables.

    :param of: the tables that are locked; empty: all of them.
    """
    return frozenset(
        one.key
        for one in mapper.column_attrs
        for column in one.columns
        if has_subquery(column) or (of and getattr(column, "table", None) not in of)
    )
