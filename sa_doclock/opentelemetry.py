"""Traces and metrics of locks for OpenTelemetry: instrument() and uninstrument().

They need the extra ``sa-doclock[otel]``.  They report the events of the module
``sa_doclock.events``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import Token
from threading import Lock
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, Table, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from . import __version__
from .checkout_info import Checkout
from .core.documents import mapper_of, root_of
from .dialects import product_of
from .errors import (
    CheckedOut,
    DeadlockDetected,
    DocLockError,
    LockFailed,
    LockNotAvailable,
    outcome_of,
)
from .events import ReleasedLock, RequestedLock
from .keys import DocumentKey, LockedName, key_text, public_key
from .options import LockOptions, held_lock
from .session import LockingSession

try:
    from opentelemetry import context, metrics, trace
except ImportError as error:
    raise ImportError(
        "sa_doclock.opentelemetry needs the OpenTelemetry API: pip install 'sa-doclock[otel]'"
    ) from error

_EVENTS: Final = (
    "before_lock",
    "after_lock",
    "lock_acquired",
    "lock_failed",
    "locks_released",
    "checkout_changed",
    "transaction_retried",
)
_NAMED: Final = "key"
"""Replaces the class name for a name locked by ``lock_key()``."""

_WAITS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)
_HOLDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0)

_SYSTEMS: Final = {
    "firebird": "firebirdsql",
    "mssql": "microsoft.sql_server",
    "oracle": "oracle.db",
}
"""OpenTelemetry's names of databases that differ from SQLAlchemy's."""

Attributes = dict[str, Any]


class _Call(NamedTuple):
    """A lock call in progress.

    :ivar engine: of its database; None: the session finds none, and the call fails.
    """

    span: trace.Span
    token: Token[context.Context]
    engine: Engine | None


_changing = Lock()
# Threads: changed under the lock.
_active: _Telemetry | None = None


def instrument(
    *,
    keys: bool = False,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Report the locks of all sessions of this process to OpenTelemetry.

    Each call for a lock has a span, ``lock Order``, which is the parent of the spans inside the call,
    such as those of SQLAlchemy's instrumentation.  Its kind is CLIENT, and its ``db.*`` attributes
    follow OpenTelemetry's conventions for databases; docs/monitoring.md lists attributes and metrics.
    A lock that the transaction holds already is not taken again, and has no span.

    Call it when the program starts, before any session locks. A second call changes the settings;
    nothing is reported twice.

    Example::

        sa_doclock.opentelemetry.instrument(keys=True)

    :param keys: put primary keys and names into spans and metrics too. They may be personal data, and
        each key adds time series, so leave it off if there are many.
    :param tracer_provider: makes the tracer; the global one by default.
    :param meter_provider: makes the meter; the global one by default.
    """
    global _active  # noqa: PLW0603  # there is one process
    telemetry = _Telemetry(
        trace.get_tracer("sa_doclock", __version__, tracer_provider),
        metrics.get_meter("sa_doclock", __version__, meter_provider),
        keys=keys,
    )
    with _changing:
        _remove()
        for name in _EVENTS:
            event.listen(LockingSession, name, getattr(telemetry, name))
        _active = telemetry


def uninstrument() -> None:
    """Undo :func:`instrument`; do nothing if it was not called.

    Example::

        sa_doclock.opentelemetry.uninstrument()
    """
    with _changing:
        _remove()


def _remove() -> None:
    global _active
    telemetry, _active = _active, None
    if telemetry is not None:
        for name in _EVENTS:
            event.remove(LockingSession, name, getattr(telemetry, name))
        telemetry.forget_held()


def _in_child() -> None:
    """Forget the parent's locks: another thread may have been changing them during the fork."""
    if _active is not None:
        _active.forget_held()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class _Telemetry:
    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter, *, keys: bool) -> None:
        self._tracer = tracer
        self._keys = keys
        self._held = _HeldLocks()
        meter.create_observable_gauge(
            "doclock.lock.held",
            [lambda _options: self._held.observe()],
            "{lock}",
            "Locks that the transactions of this process hold now.",
        )
        self._waits = meter.create_histogram(
            "doclock.lock.wait",
            "s",
            "Duration of calls for a lock, round trips included.",
            explicit_bucket_boundaries_advisory=_WAITS,
        )
        self._holds = meter.create_histogram(
            "doclock.lock.hold",
            "s",
            "Time from the grant of a lock to the end of its transaction.",
            explicit_bucket_boundaries_advisory=_HOLDS,
        )
        self._outcomes = meter.create_counter(
            "doclock.lock.outcomes", "{lock}", "Calls for a lock, and failures of other statements."
        )
        self._deadlocks = meter.create_counter(
            "doclock.lock.deadlocks",
            "{deadlock}",
            "Transactions ended as the victim of a deadlock.",
        )
        self._checkouts = meter.create_counter(
            "doclock.checkouts", "{change}", "Check-outs that were given, renewed, taken or ended."
        )
        self._retries = meter.create_counter(
            "doclock.transaction.retries", "{retry}", "Failed attempts of run_transaction()."
        )

    def forget_held(self) -> None:
        self._held = _HeldLocks()

    def before_lock(self, session: Session, requested: RequestedLock) -> None:
        entity = _NAMED if requested.entity is None else requested.entity.__name__
        attributes = {"doclock.entity": entity, "doclock.lock": _words_of(requested.lock)}
        if self._keys and requested.ident is not None:
            attributes["doclock.key"] = key_text(requested.ident)
        engine = _engine_of(session, requested)
        attributes |= _database(engine, requested.entity)
        span = self._tracer.start_span(
            f"lock {entity}", kind=trace.SpanKind.CLIENT, attributes=attributes
        )
        token = context.attach(trace.set_span_in_context(span))
        _calls_of(session).append(_Call(span, token, engine))

    def after_lock(
        self,
        session: Session,
        requested: RequestedLock,
        granted: Sequence[DocumentKey | LockedName],
        waited: float,
        error: BaseException | None,
    ) -> None:
        outcome = "granted" if error is None else outcome_of(error)
        found: Attributes = {
            "doclock.outcome": outcome,
            "doclock.waited": waited,
            "doclock.documents": len(granted),
        }
        if self._keys and requested.ident is None:
            found["doclock.keys"] = [key_text(public_key(identity)) for _, identity in granted]
        if calls := _calls_of(session):  # empty if the call began before instrument()
            span, token, engine = calls.pop()
            # Again: only a connected engine tells MariaDB from MySQL.
            span.set_attributes(found | _database(engine, requested.entity))
            if error is not None:
                span.set_attribute("error.type", type(error).__name__)
                if not isinstance(error, (LockNotAvailable, CheckedOut)):
                    span.set_status(trace.StatusCode.ERROR, type(error).__name__)
            context.detach(token)
            span.end()
        attributes = self._attributes(requested.entity, requested.ident, requested.lock)
        attributes["doclock.outcome"] = outcome
        self._waits.record(waited, attributes)
        self._count(attributes, error)

    def lock_acquired(
        self,
        session: Session,
        document: DocumentKey | LockedName,
        lock: LockOptions,
        _waited: float,
    ) -> None:
        entity, _ = document
        name = _NAMED if entity is None else _header_name(entity)
        self._held.add(session, document, (name, _words_of(held_lock(lock))))

    def lock_failed(self, session: Session, error: LockFailed, waited: float | None) -> None:
        if waited is None and not _calls_of(session):  # otherwise after_lock counts it
            attributes = self._attributes(error.entity, error.ident, error.lock)
            self._count(attributes | {"doclock.outcome": outcome_of(error)}, error)

    def _count(self, attributes: Mapping[str, Any], error: BaseException | None) -> None:
        self._outcomes.add(1, attributes)
        if isinstance(error, DeadlockDetected):
            others = {key: found for key, found in attributes.items() if key != "doclock.outcome"}
            self._deadlocks.add(1, others)

    def locks_released(
        self, session: Session, released: Sequence[ReleasedLock], outcome: str
    ) -> None:
        self._held.discard(session, [ended.document for ended in released])
        for (entity, identity), lock, held in released:
            attributes = self._attributes(entity, public_key(identity), lock)
            self._holds.record(held, attributes | {"doclock.end": outcome.replace(" ", "_")})

    def checkout_changed(self, _session: Session, checkout: Checkout, change: str) -> None:
        attributes = self._attributes(checkout.entity, checkout.ident, None)
        attributes["doclock.change"] = change.replace(" ", "_")
        self._checkouts.add(1, attributes)
        trace.get_current_span().add_event(f"{change} {checkout.entity.__name__}", attributes)

    def transaction_retried(
        self, _session: Session, error: BaseException, _attempt: int, pause: float | None
    ) -> None:
        attributes: Attributes = {}
        if isinstance(error, DocLockError):
            attributes = self._attributes(error.entity, error.ident, None)
        attributes["error.type"] = type(error).__name__
        attributes["doclock.outcome"] = "given_up" if pause is None else "retried"
        self._retries.add(1, attributes)

    def _attributes(
        self, entity: type[Any] | None, ident: Any, lock: LockOptions | None
    ) -> Attributes:
        """Return the attributes of a measurement; the class of the header's table."""
        attributes: Attributes = {}
        if entity is not None:
            attributes["doclock.entity"] = _header_name(entity)
        elif ident is not None:
            attributes["doclock.entity"] = _NAMED
        if lock is not None:
            attributes["doclock.lock"] = _words_of(lock)
        if self._keys and ident is not None:
            attributes["doclock.key"] = key_text(ident)
        return attributes


def _header_name(entity: type[Any]) -> str:
    """Return the name of the header's class, even if it is no longer mapped."""
    try:
        return root_of(mapper_of(entity)).class_.__name__
    except TypeError:  # registry.dispose() before the session was closed
        return entity.__name__


class _HeldLocks:
    """The locks that the sessions of this process hold, as the gauge shows them.

    Locks of garbage-collected sessions do not count.
    """

    def __init__(self) -> None:
        self._changing = Lock()
        # Threads: the lock protects the sessions; each session's own thread changes its locks.
        self._of: WeakKeyDictionary[Session, dict[Any, tuple[str, str]]] = WeakKeyDictionary()
        # It only grows, by a class and a lock: a gauge must report zero before it disappears.
        self._seen: dict[tuple[str, str], None] = {}

    def add(self, session: Session, document: Any, labels: tuple[str, str]) -> None:
        with self._changing:
            self._seen[labels] = None
            self._of.setdefault(session, {})[document] = labels

    def discard(self, session: Session, documents: Sequence[Any]) -> None:
        held = self._of.get(session, {})
        for document in documents:
            held.pop(document, None)

    def observe(self) -> Iterator[metrics.Observation]:
        with self._changing:
            counts = dict.fromkeys(self._seen, 0)
            for held in self._of.values():
                for labels in tuple(held.values()):
                    counts[labels] += 1
        for (entity, lock), count in counts.items():
            yield metrics.Observation(count, {"doclock.entity": entity, "doclock.lock": lock})


def _engine_of(session: Session, requested: RequestedLock) -> Engine | None:
    try:
        return session.get_bind(**requested.bind_arguments).engine
    except SQLAlchemyError:
        return None  # the lock fails with the same error


def _database(engine: Engine | None, entity: type[Any] | None) -> Attributes:
    """Return the attributes of OpenTelemetry's database conventions.

    The URL alone says where the database is; the server is not asked.
    """
    found: Attributes = {}
    table = None if entity is None else root_of(mapper_of(entity)).local_table
    if isinstance(table, Table):
        found["db.collection.name"] = table.fullname
    if engine is None:
        return found
    product, url = product_of(engine.dialect), engine.url
    found["db.system.name"] = _SYSTEMS.get(product, product)
    schemas = engine.get_execution_options().get("schema_translate_map") or {}
    if isinstance(table, Table) and table.schema in schemas:
        schema = schemas[table.schema]
        found["db.collection.name"] = f"{schema}.{table.name}" if schema else table.name
    given = {"db.namespace": url.database, "server.address": url.host, "server.port": url.port}
    return found | {name: value for name, value in given.items() if value}


def _calls_of(session: Session) -> list[_Call]:
    return _calls.setdefault(session, [])


# Global, because instrument() is: a call may end after another instrument().
# Threads: one thread at a time uses a session, and setdefault() of a dict is atomic.
_calls: WeakKeyDictionary[Session, list[_Call]] = WeakKeyDictionary()


def _words_of(lock: LockOptions) -> str:
    names = (
        member.name for member in LockOptions if member.value and member in lock and member.name
    )
    return "|".join(names) or "None_"
