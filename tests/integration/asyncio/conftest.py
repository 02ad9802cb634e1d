"""Each test that uses ``url`` runs on each driver of each database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.integration.asyncio.drivers import DRIVERS, drivers_of, url_for
from tests.integration.asyncio.plays import Bridge
from tests.support.actors import Actor
from tests.support.databases import Database

ALL = [driver for drivers in DRIVERS.values() for driver in drivers]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize each test that uses ``driver``."""
    if "driver" in metafunc.fixturenames:
        metafunc.parametrize("driver", dict.fromkeys(ALL))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect drivers of other databases, instead of skipping them."""
    if others := [item for item in items if not _fits(item)]:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _fits(item)]


def _fits(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    column, driver = parameters.get("database"), parameters.get("driver")
    if not isinstance(column, str) or driver not in ALL:
        return True
    return driver in drivers_of(column)


@pytest.fixture
def url(documents: Database, driver: str) -> sa.URL:
    """Return this driver's URL of the database with the rows of tests/support/models.py."""
    return url_for(documents, driver)


@pytest.fixture
def enter_async(documents: Database, url: sa.URL) -> Iterator[Callable[[str], Actor[Any]]]:
    """Return a function that adds asynchronous actors; all leave together."""
    cast: list[Actor[Any]] = []

    def enter(name: str) -> Actor[Any]:
        cast.append(Actor(name, lambda: Bridge(url, documents), documents))
        return cast[-1]

    yield enter
    for actor in cast:
        actor.leave()
    for actor in cast:
        actor.join()


@pytest.fixture
def ann(enter_async: Callable[[str], Actor[Any]]) -> Actor[Any]:
    """Add the actor that acts first."""
    return enter_async("ann")


@pytest.fixture
def ben(enter_async: Callable[[str], Actor[Any]]) -> Actor[Any]:
    """Add the actor that acts second, and in most tests waits for ann."""
    return enter_async("ben")
