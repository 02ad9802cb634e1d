"""An engine whose statements are streamed all the same waits no longer, and locks all rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable
from tests.integration.timeouts.ways import SHORT, WAYS, given_up, hold
from tests.support.databases import Database
from tests.support.poolers import skip_server_cursor

pytestmark = pytest.mark.timeout(30)  # without its limit, a wait would go on for ever

Session = LockingSession


@pytest.fixture
def streaming(engine: sa.Engine) -> Iterator[Session]:
    """Open a session on the engine with ``stream_results``: cursors of the server."""
    with Session(engine.execution_options(stream_results=True)) as session:
        yield session


@pytest.mark.parametrize("name", WAYS)
def test_it_waits_as_long_as_it_was_asked_to(streaming: Session, other: Session, name: str) -> None:
    hold(other)
    given_up(streaming, WAYS[name], lock_timeout=SHORT)


def test_so_does_a_named_lock(streaming: Session, other: Session) -> None:
    other.lock_key("import")
    with pytest.raises(LockNotAvailable):
        streaming.lock_key("import", lock_timeout=SHORT)


@pytest.mark.parametrize("name", [name for name in WAYS if name != "locked"])
def test_what_is_granted_is_held(
    database: Database, streaming: Session, other: Session, name: str
) -> None:
    if "document" in name:  # the parts are read by a cursor of the server
        skip_server_cursor(database.column)
    WAYS[name](streaming, lock_timeout=29.5)
    assert streaming.held_locks
    for_one = "of two tables" if "two tables" in name else "get_entity"
    given_up(other, WAYS[for_one], lock_timeout=SHORT)
