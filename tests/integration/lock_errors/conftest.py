"""The sessions, tables and rows of tests/integration/locking, and a scene for a lock that is not granted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from tests.integration.lock_errors.scene import Scene
from tests.integration.locking.conftest import *  # noqa: F403  # the fixtures that it names in __all__
from tests.support.databases import Database


@pytest.fixture
def scene(documents: Database, make_engine: Callable[..., sa.Engine]) -> Iterator[Scene]:
    """Set the scene; all actors leave together, so none waits for another's lock."""
    with Scene(documents, make_engine).open() as scene:
        yield scene
