"""Telemetry kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sa_doclock.opentelemetry import instrument, uninstrument


class Recorded:
    """All reported telemetry."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    @property
    def spans(self) -> list[ReadableSpan]:
        """The ended spans, in order."""
        return list(self._exporter.get_finished_spans())

    def points(self, name: str) -> list[Any]:
        """Return the data points of a metric, one for each set of attributes."""
        return [
            point
            for metric in self._metrics()
            if metric.name == name
            for point in metric.data.data_points
        ]

    def sums(self, name: str) -> dict[tuple[Any, ...], float]:
        """Return a counter's counts, or the numbers of values in a histogram.

        Keyed by the values of the attributes, in the order of their names.
        """
        return {
            tuple(value for _, value in sorted(point.attributes.items())): (
                point.value if hasattr(point, "value") else point.count
            )
            for point in self.points(name)
        }

    def units(self) -> Mapping[str, str]:
        """Return the unit of each metric that has values."""
        return {metric.name: metric.unit for metric in self._metrics()}

    def _metrics(self) -> Iterator[Any]:
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                yield from scope.metrics

    def clear(self) -> None:
        self._exporter.clear()


Instrument = Callable[..., Recorded]


@pytest.fixture
def instrumented() -> Iterator[Instrument]:
    """Return a function that instruments, and returns the telemetry recorded from then on."""

    def start(**how: Any) -> Recorded:
        reported = Recorded()
        instrument(tracer_provider=reported.tracers, meter_provider=reported.meters, **how)
        return reported

    yield start
    uninstrument()


@pytest.fixture
def reported(instrumented: Instrument) -> Recorded:
    """Instrument with the defaults."""
    return instrumented()
