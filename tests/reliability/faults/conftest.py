"""The scene, on a database of the matrix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability import Reliability, Soak
from tests.reliability.faults.scene import Scene, open_scene
from tests.support.databases import Database


@pytest.fixture
def scene(database: Database, soak: Soak, reliability: Reliability) -> Iterator[Scene]:
    """Give the test the folders on one database."""
    scene = open_scene(database, soak, reliability)
    yield scene
    scene.close()
