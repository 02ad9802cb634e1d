"""Runs each way so many times, and tells what has grown."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.reliability import Row, Soak
from tests.reliability.leaks.footprint import Footprint, footprint, growth
from tests.reliability.leaks.scene import Scene, Way

#: Cycles of a way before it is measured: caches are filled, pools have their connections.
WARM_UP = 6

#: What ends in its own time after it was asked to: a server's session, a driver's thread.
_LATE = {"sessions", "sessions with locks", "locks", "threads", "open files"}
_PATIENCE = 10.0


def run_all(scene: Scene, soak: Soak, row: Row, ways: Sequence[Way], cycles: int) -> None:
    """Run so many cycles, each way as often as the others.

    :raises AssertionError: something grows, from the first cycle to the last of one way or of
        them all.
    """
    for way in ways:
        repeat(scene, way, WARM_UP)
    start = footprint(scene)
    each = -(-cycles // len(ways))
    for way in ways:
        leaked = leak_of(scene, way, each)
        assert not leaked, f"{each} cycles of {way.__name__} have left {leaked}"
        row.injected += each
        soak.progress(
            f"{scene.database.column}: {row.injected:,} cycles, {way.__name__} leaves nothing"
        )
    leaked = grown_since(scene, start)
    assert not leaked, f"{row.injected} cycles have left {leaked}"
    more = footprint(scene)["kB of memory"] - start["kB of memory"]
    row.note = f"memory {more:+,} kB; objects, connections, locks +0"


def leak_of(scene: Scene, way: Way, cycles: int) -> dict[str, int]:
    """Run one way so many times; tell what has grown since the start."""
    repeat(scene, way, WARM_UP)
    before = footprint(scene)
    repeat(scene, way, cycles)
    return grown_since(scene, before)


def grown_since(scene: Scene, before: Footprint) -> dict[str, int]:
    """Tell what has grown, once nothing can be expected to end any more."""
    end = time.monotonic() + _PATIENCE
    while (found := growth(before, footprint(scene))).keys() & _LATE and time.monotonic() < end:
        time.sleep(0.05)
    return found


def repeat(scene: Scene, way: Way, cycles: int) -> None:
    """Run one way so many times."""
    for _ in range(cycles):
        way(scene)
        scene.number += 1
