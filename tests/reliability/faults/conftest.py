"""Clients keep changing documents while faults are injected; then the tests verify everything.

``chaos.py`` has the kinds of faults, ``clients.py`` and ``ways.py`` the clients. Each client logs the commits that it
intended and those that were acknowledged (``model.py``). ``afterwards.py`` then compares the log with the database
over a separate connection, and looks for remaining locks and for settings left in the pool.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability import Reliability, Soak
from tests.reliability.faults.scene import Scene, open_scene
from tests.support.databases import Database


@pytest.fixture
def scene(database: Database, soak: Soak, reliability: Reliability) -> Iterator[Scene]:
    """Provide the folders on one database."""
    scene = open_scene(database, soak, reliability)
    yield scene
    scene.close()
