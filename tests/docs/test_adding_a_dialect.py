"""The smallest dialect of docs/adding-a-dialect.md locks: installed as a package, on a real server."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects import ENTRY_POINT_GROUP, strategy_for
from sa_doclock.dialects.base import LockStrategy
from tests.docs.pages import blocks_of
from tests.support.actors import Actor
from tests.support.databases import PIPELINED, Database
from tests.support.entry_points import installed
from tests.support.models import Base, Order, refill
from tests.support.waits import wait_until_blocked

PAGE = "docs/adding-a-dialect.md"
FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
Session = Actor[LockingSession]

pytestmark = [pytest.mark.databases("postgresql"), pytest.mark.not_databases(PIPELINED)]


class AcmeDialect(PGDialect_psycopg):
    """PostgreSQL under another name, by which no strategy is built in."""

    name = "acme"
    supports_statement_cache = True


registry.register("acme", __name__, "AcmeDialect")


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Install the package that the page shows, its class and its entry point; give its name."""
    (smallest,) = (block.text for block in blocks_of(PAGE) if block.name == "smallest")
    (toml,) = (block.text for block in blocks_of(PAGE) if block.language == "toml")
    found = re.fullmatch(r'\[project\.entry-points\."(\S+)"\]\n(\w+) = "(\S+)"', toml)
    assert found is not None
    group, name, value = found.groups()
    assert group == ENTRY_POINT_GROUP
    with installed({name: value}, tmp_path) as site:
        site.joinpath("acme_locks.py").write_text(smallest, encoding="utf-8")
        yield name
    monkeypatch.delitem(sys.modules, "acme_locks", raising=False)


@pytest.fixture
def session_factory(
    database: Database, acme: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], LockingSession]:
    """Make sessions on the tables of tests/support/models.py, in the database by its other name."""
    database.create(Base.metadata)
    with database.engine().begin() as connection:
        refill(connection)
    url = sa.make_url(database.url).set(drivername=acme)
    monkeypatch.setattr(database, "url", url.render_as_string(hide_password=False))
    engine = database.engine()
    return lambda: LockingSession(engine)


def locks(lock: LockOptions) -> Callable[[LockingSession], int]:
    return lambda session: session.get_one_entity(Order, 1, lock).total


def add_ten(session: LockingSession) -> None:
    session.get_one(Order, 1).total += 10
    session.save_changes()


def the_strategy(session: LockingSession) -> LockStrategy:
    return strategy_for(session.get_bind())


def test_it_has_a_name_and_two_objects(alice: Session) -> None:
    strategy = type(alice.does(the_strategy))
    assert strategy.__module__ == "acme_locks"
    own = {name for name in vars(strategy) if not name.startswith("_")}
    assert own == {"name", "isolation", "errors"}
    assert strategy.__mro__[1] is LockStrategy


@pytest.mark.parametrize(("first", "second"), [(FOR_UPDATE, FOR_UPDATE), (SHARED, FOR_UPDATE)])
def test_a_second_session_waits_for_its_lock(
    alice: Session, bob: Session, first: LockOptions, second: LockOptions
) -> None:
    before = alice.does(locks(first))
    queued = bob.starts(locks(second))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(add_ten if first is FOR_UPDATE else LockingSession.release_locks)
    assert queued.result() == before + (10 if first is FOR_UPDATE else 0)


def test_its_numbers_become_typed_errors(alice: Session, bob: Session) -> None:
    alice.does(locks(FOR_UPDATE))
    with pytest.raises(LockNotAvailable, match="NOWAIT on acme"):
        bob.does(locks(FOR_UPDATE | LockOptions.NoWait))
