"""The databases that a program's own ``get_bind()`` chooses, fixed from a lock to its end.

A routing session sends reads to replicas, perhaps at random, and writes to the primary.  A lock
and what is read under it need one connection: so a lock asks ``get_bind()`` once, and the
connection that has locked serves this kind of document until the transaction ends.  A session with
SQLAlchemy's own ``get_bind()`` has no router.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from sqlalchemy import Connection, Engine, Select, Table, Update, inspect, select, table, update
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.sql import visitors

from ..core.documents import mapper_cache, parts_of, root_of
from ..core.transaction import (
    LockContext,
    LockRequest,
    SessionPart,
    add_document,
    connections_of,
    database_name,
)
from ..errors import DocLockError, LockMisuse, LockNotSupported
from ..options import LockOptions, base_of

Bind = Engine | Connection

_TRIES: Final = 16
"""The number of times that get_bind() is asked again before its answer counts as its only one."""

_WRITE: Final = update(table("sa_doclock"))
"""A write of no table, for which a named lock counts."""


@dataclass(slots=True, eq=False)
class _Pin:
    """The connection of one kind of document in this transaction.

    :ivar bind: what ``get_bind()`` has returned for the lock.
    :ivar primary: what it returned for a write at that time; None where it has refused one.
    :ivar elsewhere: the engines that are other databases.
    :ivar random: ``get_bind()`` has several answers to one question.
    """

    bind: Bind
    primary: Bind | None
    elsewhere: set[Engine] = field(default_factory=set)
    random: bool = False


class BindRouter(SessionPart):
    """The databases of one session whose class has a ``get_bind()`` of its own.

    It keeps neither the session nor its state alive.
    """

    def __init__(self, state: LockContext) -> None:
        self._session = state.session
        self._state = ref(state)
        self._chosen: dict[Bind, _Pin] = {}  # for the locks of this transaction
        self._pins: dict[Mapper[Any] | None, _Pin] = {}  # by base mapper; None: of named locks
        self._by_table: dict[Any, Mapper[Any]] = {}  # those of the pins

    def around_get_bind(self, get_bind: Callable[..., Any]) -> Callable[..., Any]:
        """See :class:`SessionPart`: in front of the class's own."""
        return self._get_bind

    def _get_bind(self, *args: Any, **kwargs: Any) -> Any:
        """Return the connection that has locked this kind of document, or what the class says."""
        given = kwargs.get("bind")
        if given is not None and self._is_ours(given):
            return given
        if self._pins:
            mapper = self._mapper_of(kwargs.get("mapper", args[0] if args else None), kwargs)
            pin = None if mapper is None else self._pins.get(mapper.base_mapper)
            if pin is not None and self._is_same(pin, {**kwargs, **_write(mapper)}):
                return pin.bind
        return self._checked(self._ask(*args, **kwargs))

    def route(self, request: LockRequest) -> LockRequest:
        """Return the request with its database in place of what ``get_bind()`` is asked.

        Who takes a lock is going to write: the question is that of an UPDATE.  A SnapshotRead
        asks for a read.

        :raises LockNotSupported: the session is a ShardedSession.
        :raises LockMisuse: a document of this class was locked in another database before.
        """
        arguments = request.bind_arguments
        given = arguments.get("bind")
        if given is not None and self._is_ours(given):
            return request
        try:
            pin = self._pin_of(request)
        except DocLockError as error:
            database = database_name(self._session(), arguments)
            add_document(error, request.entity, request.ident, request.lock, database)
            raise
        self._chosen[pin.bind] = pin
        return request._replace(bind_arguments={"bind": pin.bind})

    def _pin_of(self, request: LockRequest) -> _Pin:
        """Return the database of this lock: that of the locks before, or a new one."""
        _refuse_shards(self._session(), request)
        mapper = request.mapper
        write = {**request.bind_arguments, **_write(mapper, request.bind_arguments.get("clause"))}
        pin = self._pins.get(None if mapper is None else mapper.base_mapper)
        if pin is not None and self._is_same(pin, write):
            return pin
        if pin is not None and mapper is not None:  # a named lock is held with its engine
            raise LockMisuse(
                "the session's get_bind() has answered another database for this class than for "
                "a lock before it, and held_locks does not tell the two apart; use one session, "
                "or one transaction, for each database"
            )
        if request.mapper is None or base_of(request.lock) is not LockOptions.SnapshotRead:
            bind = self._checked(self._ask(**write))
            return _Pin(bind, bind)
        read = {"clause": _read(request.mapper), **request.bind_arguments}
        return _Pin(self._checked(self._ask(**read)), self._ask_quietly(write))

    def bound(self, mapper: Mapper[Any] | None, bind: Bind) -> None:
        """Let the database that was chosen for a lock serve this kind of document from now on.

        The session's transaction has begun there, so that its end will end this too.
        """
        key, pin = None if mapper is None else mapper.base_mapper, self._chosen[bind]
        if self._pins.get(key) is pin:
            return
        self._pins[key] = pin
        if mapper is not None:
            details = [part.detail for part in parts_of(root_of(mapper))]
            for one in (mapper, *details):
                self._pins.setdefault(one.base_mapper, pin)
                for below in one.base_mapper.self_and_descendants:
                    self._by_table.update(dict.fromkeys(below.tables, below))

    def ended(self, *, committed: bool) -> None:
        """Forget all of it."""
        self._chosen.clear()
        self._pins.clear()
        self._by_table.clear()

    def _mapper_of(self, entity: Any, arguments: Mapping[str, Any]) -> Mapper[Any] | None:
        """Return the mapper of a class, an alias or a mapper; else that of a table in the clause."""
        found = getattr(inspect(entity, raiseerr=False), "mapper", None)
        if isinstance(found, Mapper):
            return found
        clause = arguments.get("clause")
        within = () if clause is None else visitors.iterate(clause)
        return next((self._by_table[one] for one in within if one in self._by_table), None)

    def _is_ours(self, bind: Bind) -> bool:
        """Return whether a lock has chosen this database, or this is its connection."""
        if bind in self._chosen:
            return True
        if not isinstance(bind, Connection):
            return False
        found = connections_of(self._session()).find(bind)
        return found is not None and found.connection is bind

    def _is_same(self, pin: _Pin, write: Mapping[str, Any]) -> bool:
        """Return whether such a write belongs into the database of the pin.

        A class may be mapped to a database of its own, and a program may have gone over to
        another tenant.  But where ``get_bind()`` answers at random, another answer says nothing.
        """
        if pin.random or pin.primary is None:
            return True
        answer = self._ask_quietly(write)
        if answer is None or _is_same_database(answer, pin.primary):
            return True
        if answer.engine not in pin.elsewhere:
            pin.elsewhere.add(answer.engine)
            pin.random = self._answers_at_random(write, answer)
        return pin.random

    def _answers_at_random(self, write: Mapping[str, Any], answer: Bind) -> bool:
        again = (self._ask_quietly(write) for _ in range(_TRIES))
        return any(one is None or not _is_same_database(one, answer) for one in again)

    def _ask(self, *args: Any, **kwargs: Any) -> Bind:
        session = self._session()
        bind: Bind = type(session).get_bind(session, *args, **kwargs)
        return bind

    def _ask_quietly(self, write: Mapping[str, Any]) -> Bind | None:
        """Return the answer; None where the program refuses to write."""
        try:
            return self._ask(**write)
        except Exception:  # noqa: BLE001  # the program's own
            return None

    def _checked(self, bind: Bind) -> Bind:
        state = self._state()
        for using in () if state is None else state.parts.using:
            using(bind)
        return bind


def _is_same_database(one: Bind, other: Bind) -> bool:
    if one.engine is other.engine:
        return True
    names = [bind.get_execution_options().get("schema_translate_map") for bind in (one, other)]
    return one.engine.pool is other.engine.pool and names[0] == names[1]


def _write(mapper: Mapper[Any] | None, clause: Any = None) -> Mapping[str, Any]:
    """Return the bind arguments of a write to this class.

    :param clause: what reads the tables to write to, where there is no class.
    """
    if mapper is not None:
        return {"mapper": mapper, "clause": _update_of(mapper)}
    within = () if clause is None else visitors.iterate(clause)
    tables = (one for one in within if isinstance(one, Table))
    return {"clause": next(map(update, tables), _WRITE)}


@mapper_cache
def _update_of(mapper: Mapper[Any]) -> Update:
    tables = root_of(mapper).tables
    return update(tables[0]) if tables else _WRITE


@mapper_cache
def _read(mapper: Mapper[Any]) -> Select[Any]:
    return select(mapper.class_)


def _refuse_shards(session: Session, request: LockRequest) -> None:
    """:raises LockNotSupported: rows of several databases would be one document."""
    shards = sys.modules.get("sqlalchemy.ext.horizontal_shard")
    if shards is None or not isinstance(session, shards.ShardedSession):
        return
    if request.mapper is not None or request.bind_arguments.get("shard_id") is None:
        raise LockNotSupported(
            "a ShardedSession asks all shards for a row, and held_locks does not tell them apart: "
            "lock in a LockingSession of the one shard, LockingSession(engine_of_the_shard), or "
            'take a named lock there, by lock_key(.., bind_arguments={"shard_id": ..})'
        )
