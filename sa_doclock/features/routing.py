"""The databases that a custom ``get_bind()`` chooses, fixed for the duration of a lock.

A routing session sends reads to replicas, perhaps at random, and writes to the primary.  A lock and
the reads under it need one connection: so a lock calls ``get_bind()`` once, and its connection
serves this class of documents until the transaction ends.  A session with SQLAlchemy's own
``get_bind()`` has no router.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
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
from ..sqlalchemy_internals import all_mappers

Bind = Engine | Connection

TableName = tuple[str | None, str]
"""The schema and the name of a table, whichever Table object represents it."""

_TRIES: Final = 16
"""The number of questions to get_bind() until its answer counts as constant."""

_WRITE: Final = update(table("sa_doclock"))
"""A write without a table, which stands for a named lock."""


@dataclass(slots=True, eq=False)
class _Pin:
    """The connection on which rows of some tables are locked in this transaction.

    :ivar bind: the result of ``get_bind()`` for the lock.
    :ivar primary: its result for a write at that time; None: it refused.
    :ivar elsewhere: engines of other databases.
    :ivar random: ``get_bind()`` gives different answers to the same question.
    :ivar names: of the tables in the statements of its locks.
    """

    bind: Bind
    primary: Bind | None
    elsewhere: set[Engine] = field(default_factory=set)
    random: bool = False
    names: set[TableName | None] = field(default_factory=set)


class _Pinned:
    """The databases that were chosen in one transaction.

    :ivar chosen: for its locks.
    :ivar pins: by table; None: named locks.
    """

    def __init__(self) -> None:
        self.chosen: dict[Bind, _Pin] = {}
        self.pins: dict[TableName | None, _Pin] = {}


class BindRouter(SessionPart):
    """The databases of one session whose class has a custom ``get_bind()``.

    It keeps neither the session nor its state alive.
    """

    def __init__(self, state: LockContext) -> None:
        self._session = state.session
        self._state: Callable[[], LockContext] = ref(state)  # type: ignore[assignment]

    @property
    def _pinned(self) -> _Pinned:
        return self._state().transaction.memory(self, _Pinned)

    def around_get_bind(self, get_bind: Callable[..., Any]) -> Callable[..., Any]:
        """See :class:`SessionPart`: called before the class's own."""
        return self._get_bind

    def _get_bind(self, *args: Any, **kwargs: Any) -> Any:
        """Return the connection that has locked rows of these tables, or the class's bind."""
        given = kwargs.get("bind")
        if given is not None and self._is_ours(given):
            return given
        if self._pinned.pins:
            entity, clause = kwargs.get("mapper", args[0] if args else None), kwargs.get("clause")
            found = getattr(inspect(entity, raiseerr=False), "mapper", None)
            mapper = found if isinstance(found, Mapper) else None
            # A join has the mapper of its first entity alone.
            own = () if mapper is None else _names_of_tables(mapper)
            pin = self._pin_at(own) or self._pin_at(_names_in(clause))
            if pin is not None and self._is_same(pin, {**kwargs, **_write(mapper, clause)}):
                return pin.bind
        return self._checked(self._ask(*args, **kwargs))

    def _pin_at(self, names: Iterable[TableName | None]) -> _Pin | None:
        pins = self._pinned.pins
        return next((pins[name] for name in names if name in pins), None)

    def route(self, request: LockRequest) -> LockRequest:
        """Return the request with its database instead of the arguments of ``get_bind()``.

        A lock prepares for a write: it asks for the database of an UPDATE.  A SnapshotRead asks for
        that of a read.

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
        self._pinned.chosen[pin.bind] = pin
        pin.names.update(_names_locked(request))
        return request._replace(bind_arguments={"bind": pin.bind})

    def _pin_of(self, request: LockRequest) -> _Pin:
        """Return the database of this lock: known from an earlier lock, or new."""
        _refuse_shards(self._session(), request)
        mapper = request.mapper
        write = {**request.bind_arguments, **_write(mapper, request.bind_arguments.get("clause"))}
        pin = self._pin_at(_names_locked(request))
        if pin is not None and self._is_same(pin, write):
            return pin
        if pin is not None and not request.named:  # a named lock is held on its engine
            raise LockMisuse(
                "the session's get_bind() returned a different database for this class than for an "
                "earlier lock, and held_locks cannot distinguish the two; use one session, "
                "or one transaction, for each database"
            )
        if request.mapper is None or base_of(request.lock) is not LockOptions.SnapshotRead:
            bind = self._checked(self._ask(**write))
            return _Pin(bind, bind)
        read = {"clause": _read(request.mapper), **request.bind_arguments}
        return _Pin(self._checked(self._ask(**read)), self._ask_quietly(write))

    def bound(self, request: LockRequest, roots: Collection[Mapper[Any]], bind: Bind) -> None:
        """Let the database of a lock serve its tables, and those of its parts.

        The session's transaction has begun there, so its end ends this too.
        """
        pinned = self._pinned
        pin = pinned.chosen.setdefault(bind, _Pin(bind, bind))  # the session's own Connection
        pin.names.update(_names_locked(request))
        locked = {*roots, *_roots_in(frozenset(pin.names))}
        for name in chain(pin.names, *map(_names_of_document, locked)):
            pinned.pins.setdefault(name, pin)

    def _is_ours(self, bind: Bind) -> bool:
        if bind in self._pinned.chosen:
            return True
        if not isinstance(bind, Connection):
            return False
        found = connections_of(self._session()).find(bind)
        return found is not None and found.connection is bind

    def _is_same(self, pin: _Pin, write: Mapping[str, Any]) -> bool:
        """Return whether the write goes to the pin's database.

        A class may have a database of its own, and a program may have switched to another tenant.
        If ``get_bind()`` answers at random, a different answer means nothing.
        """
        if pin.random or pin.primary is None:
            return True
        answer = self._ask_quietly(write)
        if answer is None or _is_same_database(answer, pin.primary):
            return True
        if answer.engine not in pin.elsewhere:
            pin.elsewhere.add(answer.engine)
            again = (self._ask_quietly(write) for _ in range(_TRIES))
            pin.random = any(bind is None or not _is_same_database(bind, answer) for bind in again)
        return pin.random

    def _ask(self, *args: Any, **kwargs: Any) -> Bind:
        session = self._session()
        bind: Bind = type(session).get_bind(session, *args, **kwargs)
        return bind

    def _ask_quietly(self, write: Mapping[str, Any]) -> Bind | None:
        try:
            return self._ask(**write)
        except Exception:  # noqa: BLE001  # the program's own
            return None

    def _checked(self, bind: Bind) -> Bind:
        state = self._state()
        for using in () if state is None else state.parts.using:
            using(bind)
        return bind


def _names_locked(request: LockRequest) -> Iterable[TableName | None]:
    if request.named:
        return (None,)
    names = _names_in(request.bind_arguments.get("clause"))
    return names if request.mapper is None else (*_names_of_tables(request.mapper), *names)


def _names_in(clause: Any) -> Sequence[TableName]:
    within = () if clause is None else visitors.iterate(clause)
    return [(element.schema, element.name) for element in within if isinstance(element, Table)]


@mapper_cache
def _names_of_tables(mapper: Mapper[Any]) -> Sequence[TableName]:
    """Return schema and name of every table of the hierarchy, which other classes may map too."""
    tables = dict.fromkeys(
        chain.from_iterable(
            descendant.tables for descendant in mapper.base_mapper.self_and_descendants
        )
    )
    return [
        (candidate.schema, candidate.name) for candidate in tables if isinstance(candidate, Table)
    ]


@mapper_cache
def _roots_in(names: frozenset[TableName | None]) -> Collection[Mapper[Any]]:
    """Return the roots of the classes of these tables."""
    found = (mapper for mapper in all_mappers() if not names.isdisjoint(_names_of_tables(mapper)))
    return {root_of(mapper) for mapper in found}


@mapper_cache
def _names_of_document(root: Mapper[Any]) -> Sequence[TableName]:
    mappers = (root, *(part.detail for part in parts_of(root)))
    return list(dict.fromkeys(chain.from_iterable(map(_names_of_tables, mappers))))


def _is_same_database(known: Bind, other: Bind) -> bool:
    if known.engine is other.engine:
        return True
    names = [bind.get_execution_options().get("schema_translate_map") for bind in (known, other)]
    return known.engine.pool is other.engine.pool and names[0] == names[1]


def _write(mapper: Mapper[Any] | None, clause: Any = None) -> Mapping[str, Any]:
    """Return the bind arguments of a write to this class, or to a table of the clause."""
    if mapper is not None:
        return {"mapper": mapper, "clause": _update_of(mapper)}
    within = () if clause is None else visitors.iterate(clause)
    tables = (element for element in within if isinstance(element, Table))
    return {"clause": next(map(update, tables), _WRITE)}


@mapper_cache
def _update_of(mapper: Mapper[Any]) -> Update:
    tables = root_of(mapper).tables
    return update(tables[0]) if tables else _WRITE


@mapper_cache
def _read(mapper: Mapper[Any]) -> Select[Any]:
    return select(mapper.class_)


def _refuse_shards(session: Session, request: LockRequest) -> None:
    """:raises LockNotSupported: the rows of several shards would count as one document."""
    shards = sys.modules.get("sqlalchemy.ext.horizontal_shard")
    if shards is None or not isinstance(session, shards.ShardedSession):
        return
    if request.mapper is not None or request.bind_arguments.get("shard_id") is None:
        raise LockNotSupported(
            "a ShardedSession asks all shards for a row, and held_locks does not tell them apart: "
            "lock in a LockingSession of the one shard, LockingSession(engine_of_the_shard), or "
            'take a named lock there, by lock_key(.., bind_arguments={"shard_id": ..})'
        )
