"""Check-outs in OpenTelemetry: a lock span, and an event on the span of the program."""

from __future__ import annotations

import pytest

from sa_doclock import LockingSession
from sa_doclock.opentelemetry import instrument, uninstrument
from tests.integration.checkouts.models import Order
from tests.integration.telemetry.conftest import Recorded

pytestmark = pytest.mark.databases("sqlite")


def test_a_change_is_an_event_of_the_span_that_is_open(session: LockingSession) -> None:
    reported = Recorded()
    instrument(tracer_provider=reported.tracers, meter_provider=reported.meters)
    try:
        tracer = reported.tracers.get_tracer("the program")
        with tracer.start_as_current_span("request"):
            session.check_in(session.check_out(Order, 1, "ann"))
            session.commit()
    finally:
        uninstrument()
    lock, request = reported.spans
    assert (lock.name, request.name) == ("lock Order", "request")
    assert [event.name for event in request.events] == ["checked out Order", "checked in Order"]
    assert dict(request.events[0].attributes or {}) == {
        "doclock.entity": "Order",
        "doclock.change": "checked_out",
    }
