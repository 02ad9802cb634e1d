"""Traces and metrics of locks for OpenTelemetry: instrument() and uninstrument().

They need the extra ``sa-doclock[otel]``.  All that is told comes from the events of the module
``sa_doclock.events``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Token
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.orm import Session

from . import __version__
from .checkout_info import Checkout
from .core.documents import mapper_of, root_of
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
from .options import LockOptions
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
    "lock_failed",
    "locks_released",
    "checkout_changed",
    "transaction_retried",
)
_NAMED: Final = "key"
"""The place of a class name where ``lock_key()`` has locked a name."""

_WAITS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)
_HOLDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0)

Attributes = dict[str, Any]
Call = tuple[trace.Span, Token[context.Context]]

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

    A span for each call for a lock, ``lock Order``, is the parent of what runs in the call, such as
    the spans of SQLAlchemy's instrumentation.  docs/monitoring.md lists attributes and metrics.  A
    lock that the transaction holds already is not taken again, and has no span.

    Call it when the program starts, before sessions lock.  A second call changes the settings;
    nothing is reported twice.

    :param keys: put primary keys and names into spans and metrics too.  They may be personal data,
        and each key makes time series of its own: leave it off where there are many.
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
    """Undo :func:`instrument`; without it, do nothing."""
    with _changing:
        _remove()


def _remove() -> None:
    global _active
    telemetry, _active = _active, None
    if telemetry is not None:
        for name in _EVENTS:
            event.remove(LockingSession, name, getattr(telemetry, name))


class _Telemetry:
    """Listens to the events that its methods are named for."""

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter, *, keys: bool) -> None:
        self._tracer = tracer
        self._keys = keys
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

    def before_lock(self, session: Session, requested: RequestedLock) -> None:
        entity = _NAMED if requested.entity is None else requested.entity.__name__
        attributes = {"doclock.entity": entity, "doclock.lock": _words_of(requested.lock)}
        if self._keys and requested.ident is not None:
            attributes["doclock.key"] = key_text(requested.ident)
        span = self._tracer.start_span(f"lock {entity}", attributes=attributes)
        token = context.attach(trace.set_span_in_context(span))
        _calls_of(session).append((span, token))

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
        if calls := _calls_of(session):  # empty where the call began before instrument()
            span, token = calls.pop()
            span.set_attributes(found)
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

    def lock_failed(self, session: Session, error: LockFailed, waited: float | None) -> None:
        if waited is None and not _calls_of(session):  # else after_lock counts it
            attributes = self._attributes(error.entity, error.ident, error.lock)
            self._count(attributes | {"doclock.outcome": outcome_of(error)}, error)

    def _count(self, attributes: Mapping[str, Any], error: BaseException | None) -> None:
        self._outcomes.add(1, attributes)
        if isinstance(error, DeadlockDetected):
            others = {key: found for key, found in attributes.items() if key != "doclock.outcome"}
            self._deadlocks.add(1, others)

    def locks_released(
        self, _session: Session, released: Sequence[ReleasedLock], outcome: str
    ) -> None:
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
        """Return those of a measurement; the class is that of the header's table."""
        attributes: Attributes = {}
        if entity is not None:
            attributes["doclock.entity"] = root_of(mapper_of(entity)).class_.__name__
        elif ident is not None:
            attributes["doclock.entity"] = _NAMED
        if lock is not None:
            attributes["doclock.lock"] = _words_of(lock)
        if self._keys and ident is not None:
            attributes["doclock.key"] = key_text(ident)
        return attributes


def _calls_of(session: Session) -> list[Call]:
    """Return the calls for a lock that are under way, the innermost last."""
    return _calls.setdefault(session, [])


# Global, as instrument() is: a call may end after it was called once more.
# Threads: a session is used by one thread at a time, and setdefault() is one operation of the
# dict.
_calls: WeakKeyDictionary[Session, list[Call]] = WeakKeyDictionary()


def _words_of(lock: LockOptions) -> str:
    """Return the lock as a program writes it: ``ForUpdate|NoWait``."""
    names = (one.name for one in LockOptions if one.value and one in lock and one.name)
    return "|".join(names) or "None_"
