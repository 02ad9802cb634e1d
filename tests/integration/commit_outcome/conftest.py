"""Sessions through a proxy that cuts the connection during COMMIT, before or after it arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from tests.integration.questions.conftest import run_on, url_of
from tests.reliability.faults.proxy import Proxy, proxy_to
from tests.support.databases import Database
from tests.support.models import Customer

__all__ = ["Through", "before_or_after", "through"]

NAME = sa.select(Customer.name).where(Customer.id == 1)

before_or_after = pytest.mark.parametrize("done", [False, True], ids=["before", "after"])


@dataclass
class Through:
    """The path to the server, through the proxy."""

    documents: Database
    proxy: Proxy

    def run(self, play: Callable[[sa.Engine], object], driver: str = "", **options: Any) -> None:
        """Run this with an engine of this driver, in a greenlet if the driver is asynchronous."""
        url = self.proxy.url
        if driver:
            url = url_of(self.documents, driver, url)
            url = url.set(query={}) if driver in ("pg8000", "asyncpg") else url
        run_on(url, play, **options)

    @contextmanager
    def engine(self, **options: Any) -> Iterator[sa.Engine]:
        """Make an engine with the database's default driver."""
        engine = sa.create_engine(self.proxy.url, **options)
        try:
            yield engine
        finally:
            engine.dispose()

    @contextmanager
    def cutting(self, *, done: bool) -> Iterator[None]:
        """Cut the COMMIT of this block.

        :param done: cut after the server has committed; else before the server gets the COMMIT.
        """
        cut = self.proxy.cut_next_commit(reaches_server=done)
        yield
        assert cut.happened


@pytest.fixture
def through(documents: Database) -> Iterator[Through]:
    """Run a proxy in front of the server."""
    with proxy_to(documents.url) as proxy:
        yield Through(documents, proxy)
