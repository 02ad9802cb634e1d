"""Connections and statements are ended by the server, at any moment."""

from __future__ import annotations

import pytest

from tests.reliability.faults.scene import Scene
from tests.reliability.faults.terminated import Cancelled, Terminated
from tests.support.databases import Database

pytestmark = [pytest.mark.soak, pytest.mark.databases("postgresql", "mysql", "mariadb")]


def test_connections_are_terminated(scene: Scene, database: Database) -> None:
    engine = scene.engine()
    scene.survives(engine, Terminated(engine, scene.direct, database.name), share=0.1)


def test_statements_are_cancelled(scene: Scene, database: Database) -> None:
    engine = scene.engine()
    scene.survives(engine, Cancelled(engine, scene.direct, database.name), share=0.1)
