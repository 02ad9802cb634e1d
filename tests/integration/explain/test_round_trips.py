"""The round trips that explain_lock() tells are those that a wire counts in front of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockExplanation, LockingSession, LockOptions, explain_lock
from tests.integration.timeouts.wire import Wire, over
from tests.support.databases import PIPELINED, Database
from tests.support.models import Lease, Order, Voucher

# The sessions of these tests say themselves whether they use a pipeline.
pytestmark = pytest.mark.not_databases(PIPELINED)

FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
KINDS = [
    FOR_UPDATE,
    FOR_UPDATE | LockOptions.NoWait,
    SHARED,
    LockOptions.SnapshotRead,
    LockOptions.NoLock,
]
ON_SERVERS = pytest.mark.databases("postgresql", "mysql", "mariadb")
Make = Callable[..., sa.Engine]


@pytest.fixture
def wire(documents: Database) -> Iterator[Wire]:
    """Stand in front of the server."""
    url = sa.make_url(documents.url)
    wire = Wire(url.host or "127.0.0.1", url.port or {"postgresql": 5432}.get(documents.name, 3306))
    yield wire
    wire.close()


@pytest.fixture
def make(documents: Database, wire: Wire) -> Iterator[Make]:
    """Return a maker of engines of one connection each, through the wire."""
    made: list[sa.Engine] = []
    through = sa.make_url(documents.url).set(host="127.0.0.1", port=wire.port)
    if documents.name == "postgresql":
        through = over(wire, documents.url)

    def make(**options: Any) -> sa.Engine:
        made.append(sa.create_engine(through, pool_size=1, max_overflow=0, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


def counted(
    wire: Wire, engine: sa.Engine, entity: type[Any], ident: Any, lock: LockOptions, **how: Any
) -> int:
    """Return the round trips of the second session; the first asks what is asked once."""
    seconds, trips = how.pop("lock_timeout", None), []
    for _ in range(2):
        with LockingSession(engine, **how) as session:
            with wire.counting() as trips:
                found = session.get_document(entity, ident, lock, lock_timeout=seconds)
            assert found is not None
    return trips[0]


def check(wire: Wire, engine: sa.Engine, entity: type[Any], ident: Any, lock: LockOptions) -> None:
    reported = explain_lock(engine, entity, lock)
    assert reported.round_trips == counted(wire, engine, entity, ident, lock)
    if engine.dialect.driver == "psycopg":
        assert reported.pipelined_round_trips == counted(
            wire, engine, entity, ident, lock, pipeline=True
        )
    else:
        assert reported.pipelined_round_trips is None


@ON_SERVERS
@pytest.mark.parametrize("lock", KINDS, ids=str)
@pytest.mark.parametrize(("entity", "ident"), [(Order, 1), (Lease, 1), (Voucher, (2024, 1))])
def test_as_counted(
    make: Make, wire: Wire, entity: type[Any], ident: Any, lock: LockOptions
) -> None:
    check(wire, make(), entity, ident, lock)


@ON_SERVERS
@pytest.mark.parametrize("lock", [FOR_UPDATE, LockOptions.SnapshotRead], ids=str)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_at_a_level_of_the_engine(make: Make, wire: Wire, level: str, lock: LockOptions) -> None:
    check(wire, make(isolation_level=level), Order, 1, lock)


@ON_SERVERS
@pytest.mark.parametrize("seconds", [0, 0.3, 2])
def test_with_a_limit(make: Make, wire: Wire, seconds: float) -> None:
    engine = make()
    reported = explain_lock(engine, Order, FOR_UPDATE, lock_timeout=seconds)
    how = {"lock_timeout": seconds}
    assert reported.round_trips == counted(wire, engine, Order, 1, FOR_UPDATE, **how)
    if reported.pipelined_round_trips is not None:
        trips = counted(wire, engine, Order, 1, FOR_UPDATE, pipeline=True, **how)
        assert reported.pipelined_round_trips == trips


@pytest.mark.databases("sqlite")
def test_a_file_has_none(engine: sa.Engine) -> None:
    reported = explain_lock(engine, Order, FOR_UPDATE)
    assert (reported.round_trips, reported.pipelined_round_trips) == (0, None)
    assert "round trips: 0\n" in str(reported)


@ON_SERVERS
def test_the_text_has_them(engine: sa.Engine) -> None:
    reported: LockExplanation = explain_lock(engine, Order, FOR_UPDATE)
    pipelined = "; 1 with pipeline=True" if engine.dialect.driver == "psycopg" else ""
    assert f"\nround trips: {reported.round_trips}{pipelined}\n" in str(reported)
