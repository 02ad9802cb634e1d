"""Cycle after cycle leaves nothing: not an object, a listener, a connection, nor a lock."""

from __future__ import annotations

import pytest

from tests.reliability import Reliability, Soak
from tests.reliability.leaks.cycles import run_all
from tests.reliability.leaks.failures import FAILURES, RARE_FAILURES
from tests.reliability.leaks.scene import Scene
from tests.reliability.leaks.ways import RARE_WAYS, WAYS

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(7200),
    pytest.mark.databases("postgresql", "sqlite"),
    pytest.mark.not_databases("sqlite-journal"),  # the same code, and slower
]


@pytest.mark.slow
def test_locking_and_letting_go_leaves_nothing(
    scene: Scene, soak: Soak, reliability: Reliability
) -> None:
    row = reliability.row("locks taken and let go", scene.database.column)
    run_all(scene, soak, row, WAYS, soak.times(short=15 * len(WAYS), long=100_000))


@pytest.mark.slow
def test_failing_leaves_nothing(scene: Scene, soak: Soak, reliability: Reliability) -> None:
    row = reliability.row("locks failed", scene.database.column)
    run_all(scene, soak, row, FAILURES, soak.times(short=15 * len(FAILURES), long=10_000))


@pytest.mark.slow
def test_what_takes_long_leaves_nothing(scene: Scene, soak: Soak, reliability: Reliability) -> None:
    ways = (*RARE_WAYS, *RARE_FAILURES)
    row = reliability.row("engines made, connections lost, deadlocks", scene.database.column)
    run_all(scene, soak, row, ways, soak.times(short=12, long=300) * len(ways))
