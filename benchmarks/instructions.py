"""Measure the instructions of Python that an update and a load execute, in the ways of overhead.py.

They are nearly the same on a busy machine, where a ratio of times is not: some 50 depend on the order
of SQLAlchemy's sets.  Each is the least of several operations, warm; what C executes is not counted.

    python -m benchmarks.instructions [--databases postgresql] [--json FILE]
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import sa_doclock
from benchmarks.lab import script
from benchmarks.lab.figures import Figure
from benchmarks.lab.models import clean, fill
from benchmarks.lab.places import NAMES, Place
from benchmarks.overhead import OPERATIONS, PAIRS, ways
from benchmarks.ways.doclock import PIPELINE, PIPELINE_WHOLE, pipelined, pipelined_whole
from benchmarks.ways.orm import BY_HAND, BY_HAND_EAGER

WARM, COUNTED = 6, 6  # operations
_PIPELINED = {"pipeline": (PIPELINE, BY_HAND), "pipeline_document": (PIPELINE_WHOLE, BY_HAND_EAGER)}
_PACKAGE = str(Path(sa_doclock.__file__).parent)


class Count(NamedTuple):
    """The instructions of one operation.

    :ivar ours: the instructions of sa_doclock's functions.
    :ivar calls: how often these were called.
    """

    all: int
    ours: int
    calls: int


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(NAMES, measure)


def measure(run: script.Script, place: Place) -> None:
    engine = place.engine()
    fill(engine)
    columns = [f"{operation}, {name}" for operation in OPERATIONS for name in ("ratio", "ours")]
    table = run.table(run.findings.servers[place.name], "way / by hand", *columns)
    found, pairs = ways(engine), PAIRS
    if place.name == "postgresql":
        found, pairs = [*found, pipelined(engine), pipelined_whole(engine)], {**PAIRS, **_PIPELINED}
    counts = {
        (way.name, operation): least(partial(getattr(way, operation), 1))
        for way in found
        for operation in OPERATIONS
    }
    for pair, (way, by_hand) in pairs.items():
        cells: list[str] = []
        for operation in OPERATIONS:
            count = counts[way, operation]
            figure = Figure(count.all / counts[by_hand, operation].all)
            run.findings.note(f"{place.name}.{pair}.{operation}", figure)
            cells += [f"{figure.value:.3f}", f"{count.ours} in {count.calls} calls"]
        table.add_row(f"{way} / {by_hand}", *cells)
    run.show(table)
    clean(engine)


def least(operation: Callable[[], object]) -> Count:
    for _ in range(WARM):
        operation()
    return min(count(operation) for _ in range(COUNTED))


def count(operation: Callable[[], object]) -> Count:
    """Return the instructions that this call executes, without garbage collection."""
    found = {"all": 0, "ours": 0, "calls": 0}

    def of_others(_frame: FrameType, what: str, _argument: object) -> Any:
        found["all"] += what == "opcode"
        return of_others

    def of_ours(_frame: FrameType, what: str, _argument: object) -> Any:
        found["all"] += what == "opcode"
        found["ours"] += what == "opcode"
        return of_ours

    def call(frame: FrameType, _what: str, _argument: object) -> Any:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        own = frame.f_code.co_filename.startswith(_PACKAGE)
        found["calls"] += own
        return of_ours if own else of_others

    gc.collect()
    gc.disable()
    before = sys.gettrace()
    sys.settrace(call)
    try:
        operation()
    finally:
        sys.settrace(before)
        gc.enable()
    return Count(**found)


if __name__ == "__main__":
    main()
