"""The scene of a test, and how many cycles it runs."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from sa_doclock.tools.cli.workload import fresh_tables
from sa_doclock.tools.cli.workload.tables import fill
from tests.reliability.leaks.footprint import footprint
from tests.reliability.leaks.scene import STATES, Scene, new_engine
from tests.support.databases import Database


@pytest.fixture
def _unheard() -> Iterator[None]:
    """Keep what the library logs from pytest, which would keep it all."""
    log = logging.getLogger("sa_doclock")

    def pass_nothing_on(_: logging.LogRecord) -> bool:
        return False

    log.addFilter(pass_nothing_on)
    yield
    log.removeFilter(pass_nothing_on)


@pytest.fixture
def scene(database: Database, _unheard: None) -> Iterator[Scene]:
    """Fill the documents, and look from now on at nothing that was there before."""
    compiled: dict[object, object] = {}
    made = new_engine(database)
    engine = made.execution_options(compiled_cache=compiled)
    with fresh_tables(engine):
        fill(engine, STATES)
        gc.collect()
        gc.freeze()  # what other tests have left is neither counted nor searched
        scene = Scene(database, engine, compiled)
        footprint(scene)  # which has caches of its own
        yield scene
        scene.close()
    made.dispose()
