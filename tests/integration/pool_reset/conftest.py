"""Sessions on a pool with one connection, through a wire that counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.conftest import *  # noqa: F403  # the fixtures that it names in __all__
from tests.integration.timeouts.wire import Wire
from tests.support.databases import Database
from tests.support.models import Order

#: Plain text on the wire where TLS would add messages of its own.
_PLAIN: Mapping[str, dict[str, Any]] = {
    "postgresql": {"sslmode": "disable", "gssencmode": "disable"},
}


@pytest.fixture
def wire(documents: Database) -> Iterator[Wire]:
    url = sa.make_url(documents.url)
    wire = Wire(url.host or "127.0.0.1", url.port or 5432)
    yield wire
    wire.close()


@pytest.fixture
def connect(
    documents: Database, wire: Wire, read_committed: dict[str, Any]
) -> Iterator[Callable[..., LockingSession]]:
    """Return a maker of sessions through the wire, each with a connection in its pool already."""
    made: list[LockingSession] = []

    def make(**options: Any) -> LockingSession:
        url = sa.make_url(documents.url).set(host="127.0.0.1", port=wire.port)
        url = url.update_query_dict(_PLAIN.get(documents.name, {}))
        given = {**read_committed, **options}
        engine = sa.create_engine(url, pool_size=1, max_overflow=0, pool_timeout=5, **given)
        session = LockingSession(engine)
        made.append(session)
        for _ in range(2):  # what is asked of a server once
            session.get_one_entity(Order, 1, LockOptions.ForUpdate)
            session.rollback()
        return session

    yield make
    for session in made:
        session.close()
        session.get_bind().engine.dispose()
