"""Clients go on changing documents while faults are injected; then everything is verified.

The kinds of faults are in ``chaos.py``. What the clients do is in ``clients.py`` and ``ways.py``; each keeps
a log of what it meant to commit and of what was acknowledged (``model.py``). ``afterwards.py`` then compares
the log with the database over a separate connection, and looks for locks and for what the pool has kept.
"""

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
