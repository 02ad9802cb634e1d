"""Connections and statements are ended by the server, at any moment."""

from __future__ import annotations

import pytest

from tests.databases import Database
from tests.faults.scene import Scene
from tests.faults.terminated import Cancelled, Terminated

pytestmark = [pytest.mark.soak, pytest.mark.databases("postgresql", "mysql", "mariadb")]


def test_connections_are_terminated(scene: Scene, database: Database) -> None:
    engine = scene.engine()
    scene.survives(engine, Terminated(engine, scene.direct, database.name), share=0.1)


def test_statements_are_cancelled(scene: Scene, database: Database) -> None:
    engine = scene.engine()
    scene.survives(engine, Cancelled(engine, scene.direct, database.name), share=0.1)
