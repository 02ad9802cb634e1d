"""explain_lock(): the statements, rows and waits of a lock, without taking it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Engine, Enum, event, select
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.types import TypeEngine

from ...core.documents import (
    converts,
    key_columns,
    key_value,
    lockable_root,
    mapper_of,
    own_table,
    parts_of,
    unique_key,
)
from ...core.loading import reads_of
from ...dialects import check_support, levels_for, schema_translation, side_engine, strategy_for
from ...dialects.base import Locked
from ...errors import LockNotSupported
from ...keys import printable
from ...options import LockOptions, LockTimeout, check_lock, check_wait, lock_label
from ...session import LockingSession
from .conflicts import conflicts_of, modifier_notes, round_trips_of

_AT_THE_END: Final = re.compile(
    r"\s+(?:FOR\s+(?:NO\s+KEY\s+)?UPDATE|FOR\s+SHARE|LOCK\s+IN\s+SHARE\s+MODE)"
    r"(?:\s+OF\s+.+?)?(?:\s+(?:NOWAIT|SKIP\s+LOCKED|WAIT\s+\d+))?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_TABLE_HINT: Final = re.compile(
    r"WITH \((?:UPDLOCK|READCOMMITTEDLOCK|NOWAIT)[^)]*\)", re.IGNORECASE
)
_BEGIN: Final = re.compile(r"^\s*BEGIN\s+IMMEDIATE\s*$", re.IGNORECASE)
# A clause that the three patterns above miss would lock something.
_LEFT: Final = re.compile(
    r"\bFOR\s+(?:NO\s+KEY\s+)?UPDATE\b|\bFOR\s+(?:KEY\s+)?SHARE\b|LOCK\s+IN\s+SHARE\s+MODE|UPDLOCK"
    r"|HOLDLOCK|READCOMMITTEDLOCK|BEGIN\s+(?:IMMEDIATE|EXCLUSIVE)|GET_LOCK|_advisory_|getapplock"
    r"|^\s*(?:UPDATE|INSERT|DELETE|REPLACE|MERGE|LOCK)\b",
    re.IGNORECASE,
)


def without_lock(statement: str) -> str:
    """Return the statement without its lock; unchanged if it has none.

    :raises LockNotSupported: it would still lock something, so it is not sent.
    """
    sent = _BEGIN.sub("BEGIN", _TABLE_HINT.sub("WITH (NOLOCK)", _AT_THE_END.sub("", statement)))
    if _LEFT.search(sent):
        raise LockNotSupported(f"explain_lock() cannot remove the lock from this statement: {sent}")
    return sent


# Each type that converts values accepts one of these.
_CANDIDATES: Final = (0, b"", "2000-01-01", "00:00", "00000000-0000-0000-0000-000000000000")


def some_value(column_type: TypeEngine[Any]) -> Any:
    """Return a value that a column of this type can have.

    :raises LookupError: only the type itself knows one.
    """
    candidates = column_type.enums if isinstance(column_type, Enum) else _CANDIDATES
    for candidate in candidates if converts(column_type) else ():
        with suppress(TypeError, ValueError):
            return key_value(column_type, candidate)
    raise LookupError(f"no value of {column_type!r} is known")


_NO_KEY_KNOWN = "the table has no rows: the statements that read parts are not among these"


@dataclass(frozen=True)
class LockExplanation:
    """A lock on a document: its statements, its rows, and its waits.

    :ivar database: the database, as ``"postgresql"``.
    :ivar level: the isolation level of a transaction that the lock begins; None: the database has
        only one level, or any will do.
    :ivar statements: the statements in order, with placeholders for values; without the driver's
        own BEGIN.
    :ivar rows: the rows that are locked until the transaction ends; empty: none.
    :ivar waits_for: the locks and statements for which this lock waits, or that wait for it.
    :ivar notes: the particulars of this database.
    :ivar round_trips: how often the call waits for an answer of the server, including the driver's
        own BEGIN; 0 on SQLite; None if they were not counted for this driver.
    :ivar pipelined_round_trips: the same for a session with ``pipeline=True``; None without a
        pipeline.
    """

    entity: type[Any]
    lock: LockOptions
    database: str
    level: str | None
    statements: tuple[str, ...]
    rows: tuple[str, ...]
    waits_for: tuple[str, ...]
    notes: tuple[str, ...]
    round_trips: int | None = None
    pipelined_round_trips: int | None = None

    def __str__(self) -> str:
        """Return a text for people."""
        lines = [f"{self.entity.__name__} {lock_label(self.lock)} on {self.database}"]
        if self.level is not None:
            lines += [f"isolation level: {self.level}"]
        lines += _listed("sends", [f"{statement};" for statement in self.statements])
        if self.round_trips is not None:
            pipelined = self.pipelined_round_trips
            more = "" if pipelined is None else f"; {pipelined} with pipeline=True"
            lines += [f"round trips: {self.round_trips}{more}"]
        lines += _listed("locks", self.rows or ["no row"])
        lines += _listed("waits for, and keeps waiting", self.waits_for or ["nobody"])
        lines += _listed("notes", self.notes)
        return "\n".join(lines)


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"{title}:", *(f"  {printable(item)}" for item in items)] if items else []


def explain_lock(
    engine_or_session: Engine | Session,
    entity: type[Any],
    lock: LockOptions,
    *,
    lock_timeout: LockTimeout = None,
    key: Collection[str] | None = None,
) -> LockExplanation:
    """Return the statements, rows and waits of ``get_document(entity, key, lock)``, without
    blocking other transactions.

    The statements are those of a session that has locked such a document before.  They are sent
    without their locks, for an existing row, over a separate connection: so the database has
    accepted every statement shown, apart from the locks.

    Example::

        print(explain_lock(engine, Order, LockOptions.ForUpdate))

    :param engine_or_session: the engine, or a session that chooses the database of this class; the
        session's own ``lock_timeout`` and ``pipeline`` are ignored.
    :param lock: with its modifiers; for SkipLocked the statements are those of ``entity_set()``.
    :param lock_timeout: as for ``get_entity()``, in seconds.
    :param key: the attributes of a unique key, as ``("provider", "event_id")``: the statements that
        ``get_or_create_entity()`` sends for an existing row, whose key has no NULL.
    :raises LockNotSupported: this database, table or connection cannot give that lock, as the call
        itself would raise it.  Or the table is empty, and only a type of the program knows a key;
        with ``key``, it has no row with that key.
    :raises TypeError: as ``get_entity()`` raises it for its arguments.
    :raises ValueError: likewise; ``key`` names no unique key, and the message lists them.
    """
    if isinstance(key, str):
        raise TypeError(f"key must be the attributes of a unique key, as ({key!r},), not {key!r}")
    engine = _engine_of(engine_or_session, entity)
    lock, seconds = check_wait(check_lock(lock), lock_timeout)
    mapper = mapper_of(entity)
    lockable_root(mapper)
    with side_engine(engine) as own:
        bind = own.execution_options(**engine.get_execution_options())
        strategy = strategy_for(bind)
        check_support(strategy, lock)
        unique = None if key is None else _some_unique_key(bind, mapper, key)
        found = _some_key(bind, mapper)
        given = unique or found
        _lock(bind, entity, given, lock, seconds)  # sends the questions that each new engine asks
        sent = _lock(bind, entity, given, lock, seconds)
        with bind.connect() as connection:
            limit = strategy.waits.sent_around(connection, lock, seconds)
        travelling = 0  # the SELECTs of parts that a pipeline sends with the locking one
        if not (
            unique
            or LockOptions.SkipLocked in lock
            or schema_translation(bind.get_execution_options())
        ):
            travelling = len(reads_of(mapper, (None,) * len(mapper.primary_key), lock))
        driver, count = bind.dialect.driver, len(sent.statements)
        trips = round_trips_of(strategy, driver, lock, count, travelling, limited=bool(limit))
    conflicts = conflicts_of(strategy.name, lock)
    levels = levels_for(strategy.isolation, lock)
    notes = (*modifier_notes(lock), *conflicts.notes)
    if found is None and parts_of(lockable_root(mapper)):
        notes += (_NO_KEY_KNOWN,)
    table = own_table(mapper).fullname
    whole = strategy.statements.locked is Locked.DATABASE
    where = "" if whole else f"the row of {table} with this key: "
    rows = () if conflicts.kind is None else (f"{where}{conflicts.kind}",)
    return LockExplanation(
        entity,
        lock,
        strategy.name,
        next(iter(levels), None),
        sent.with_limit(limit),
        rows,
        conflicts.others,
        notes,
        *trips,
    )


def _engine_of(engine_or_session: object, entity: type[Any]) -> Engine:
    if isinstance(engine_or_session, Engine):
        return engine_or_session
    if isinstance(engine_or_session, Session):
        return engine_or_session.get_bind(mapper_of(entity)).engine
    raise TypeError(f"explain_lock() needs an Engine or a Session, not {engine_or_session!r}")


def _some_key(engine: Engine, mapper: Mapper[Any]) -> Any:
    columns = key_columns(mapper.class_)
    with Session(engine) as session:
        found = session.execute(select(*columns).limit(1)).first()
    return None if found is None else tuple(found)


def _some_unique_key(
    engine: Engine, mapper: Mapper[Any], attributes: Collection[str]
) -> Mapping[str, Any]:
    key = unique_key(mapper, attributes)
    known = [column.is_not(None) for column in key.columns]
    with Session(engine) as session:
        rows = select(*(getattr(mapper.class_, name) for name in key.names)).where(*known)
        found = session.execute(rows.limit(1)).first()
    if found is None:
        names = ", ".join(key.names)
        raise LockNotSupported(
            f"{mapper.class_.__name__} has no row with the unique key ({names}); add one row, and explain again"
        )
    return dict(zip(key.names, found, strict=True))


def _lock(
    engine: Engine, entity: type[Any], key: Any, lock: LockOptions, seconds: float | None
) -> _PlanRecorder:
    """Take the lock as a program does; return its statements."""
    recorder = _PlanRecorder()
    with recorder.installed(engine), LockingSession(engine) as session:
        if LockOptions.SkipLocked in lock:
            statement = session.entity_set(entity, lock, lock_timeout=seconds)
            session.scalars(statement.limit(1)).all()
        elif isinstance(key, Mapping):
            session.get_or_create_entity(entity, key, lock, lock_timeout=seconds)
        else:
            key = _absent_key(mapper_of(entity)) if key is None else key
            session.get_document(entity, key, lock, lock_timeout=seconds)
    return recorder


def _absent_key(mapper: Mapper[Any]) -> Any:
    try:
        return tuple(some_value(column.type) for column in mapper.primary_key)
    except LookupError as error:
        raise LockNotSupported(
            f"{mapper.class_.__name__} has no row, and {error}; add one row, and explain again"
        ) from error


@dataclass
class _PlanRecorder:
    """The statements of one engine, each on one line, executed without their locks.

    :ivar first_lock: the position of the first locking statement, from 1; 0: none.
    """

    statements: list[str] = field(default_factory=list)
    first_lock: int = 0

    @contextmanager
    def installed(self, engine: Engine) -> Iterator[None]:
        """Record the statements of this block, as the driver would get them."""
        names = ("do_execute", "do_execute_no_params")
        for name in names:
            event.listen(engine, name, self._send_unlocked)
        try:
            yield
        finally:
            for name in names:
                event.remove(engine, name, self._send_unlocked)

    def _send_unlocked(self, cursor: Any, statement: str, *arguments: Any) -> bool:
        """Record a statement; execute it without its lock, or return False if it has none."""
        *parameters, _context = arguments  # parameters may be absent
        unlocked = without_lock(statement)
        self.statements.append(" ".join(statement.split()))
        if unlocked == statement:
            return False
        self.first_lock = self.first_lock or len(self.statements)
        cursor.execute(unlocked, *parameters)
        return True

    def with_limit(self, limit: Sequence[str]) -> tuple[str, ...]:
        """Return the statements, with the limits of the lock around the first locking one."""
        if not limit:
            return tuple(self.statements)
        # On SQLite no statement names a lock; the first SELECT waits.
        place = self.first_lock or 1 + [statement[:6] for statement in self.statements].index(
            "SELECT"
        )
        before, lock = self.statements[: place - 1], self.statements[place - 1]
        return (*before, *limit[:-1], lock, limit[-1], *self.statements[place:])
