"""Faults within the process: no server has to do with them."""

from __future__ import annotations

import pytest

from tests.reliability.faults.crowd import POOL_TIMEOUT, FullPool
from tests.reliability.faults.interrupts import Interrupts
from tests.reliability.faults.scene import INJECTIONS, Scene

pytestmark = [pytest.mark.soak, pytest.mark.not_databases("mssql", "sqlite-journal")]


@pytest.mark.slow
def test_the_pool_is_full(scene: Scene) -> None:
    engine = scene.engine(pool_timeout=POOL_TIMEOUT)
    crowd = FullPool(engine)
    scene.survives(engine, crowd, share=0.05, before=crowd.before)


@pytest.mark.slow
def test_exceptions_nobody_expects(scene: Scene) -> None:
    engine = scene.engine()
    interrupts = Interrupts(engine)
    pause = interrupts.pause
    scene.survives(engine, interrupts, share=0.1, pause=pause, injections=2 * INJECTIONS)
