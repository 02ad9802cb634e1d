"""The table of docs/monitoring.md: the metrics, as OpenTelemetry's own reader has them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from sa_doclock import Checkout, DeadlockDetected, LockingSession, LockOptions
from sa_doclock.events import ReleasedLock, RequestedLock
from sa_doclock.opentelemetry import instrument, uninstrument
from tests.sql.models import Order

LOCK = LockOptions.ForUpdate


def metrics() -> Iterator[str]:
    """Yield a row for each metric, with the attributes of its values."""
    yield "| metric | unit | measures | attributes |"
    yield "|---|---|---|---|"
    for metric in sorted(_measured(), key=lambda metric: metric.name):
        names = {name for point in metric.data.data_points for name in point.attributes}
        cells = (f"`{metric.name}`", f"`{metric.unit}`", metric.description, _listed(names))
        yield f"| {' | '.join(cells)} |"


def _measured() -> list[Any]:
    reader = InMemoryMetricReader()
    instrument(
        tracer_provider=TracerProvider(shutdown_on_exit=False),
        meter_provider=MeterProvider([reader], shutdown_on_exit=False),
    )
    try:
        with LockingSession() as session:
            _emit_each_event(session)
        data = reader.get_metrics_data()  # before the gauge is emptied
    finally:
        uninstrument()
    assert data is not None
    return [m for r in data.resource_metrics for scope in r.scope_metrics for m in scope.metrics]


def _emit_each_event(session: LockingSession) -> None:
    """Tell the listeners what happens in a program: nothing is locked."""
    requested = RequestedLock(Order, 42, LOCK, None)
    session.dispatch.before_lock(session, requested)
    session.dispatch.lock_acquired(session, (Order, (42,)), LOCK, 0.0)
    session.dispatch.after_lock(session, requested, [(Order, (42,))], 0.0, None)
    deadlock = DeadlockDetected("made up", entity=Order, ident=42, lock=LOCK)
    session.dispatch.lock_failed(session, deadlock, None)
    session.dispatch.transaction_retried(session, deadlock, 1, None)
    released = [ReleasedLock((Order, (42,)), LOCK, 0.0)]
    session.dispatch.locks_released(session, released, "committed")
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    checkout = Checkout(Order, 42, "Ann", 1, now, now, None, timedelta(0), expired=False)
    session.dispatch.checkout_changed(session, checkout, "checked out")


def _listed(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
