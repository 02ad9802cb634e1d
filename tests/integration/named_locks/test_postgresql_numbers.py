"""The numbers by which PostgreSQL knows the keys: nobody can choose one, and any program can compute it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable
from sa_doclock.dialects.postgresql.named_locks import number_of
from tests.integration.named_locks.keys import KEY, finds_taken
from tests.support.databases import PIPELINED, Database

pytestmark = pytest.mark.databases("postgresql")

#: Made in seconds by turning hashtextextended() around: a user may well be called like that.
SAME_OLD_NUMBER = "user:mallory[vQJrh,yMWT#"
OLD = "hashtextextended({}, 0)"
PAGE = Path(__file__).parents[3] / "docs" / "named-locks.md"
DRIVERS = ("psycopg", "psycopg2")

Sessions = Callable[..., LockingSession]


def documented() -> str:
    """Return the number of :key as the page computes it in SQL."""
    found = re.search(
        r"pg_advisory_xact_lock\((\('x'.*::bigint)\);$", PAGE.read_text(), re.MULTILINE
    )
    assert found is not None
    return found[1].replace("'user:42'", "CAST({} AS text)")


@pytest.fixture
def both_numbers(make_engine: Callable[..., sa.Engine]) -> Iterator[LockingSession]:
    """Open a session of a deployment in which processes of an earlier version run too."""
    engine = make_engine(execution_options={"doclock_old_keys": True})
    with LockingSession(engine) as session:
        yield session


def test_nobody_can_choose_a_key_that_blocks_another(
    session: LockingSession, other: LockingSession
) -> None:
    same = sa.text(f"SELECT {OLD.format(':one')} = {OLD.format(':other')}")
    assert session.scalar(same, {"one": KEY, "other": SAME_OLD_NUMBER})
    session.lock_key(SAME_OLD_NUMBER)
    other.lock_key(KEY, lock_timeout=0)


@pytest.mark.parametrize("key", [KEY, "a", "Zoë's own", "日本", "it's 100%:b", "x" * 10_000])
def test_the_page_computes_the_same(session: LockingSession, key: str) -> None:
    number = sa.text("SELECT " + documented().format(":key").replace("::", r"\:\:"))
    assert session.scalar(number, {"key": key}) == number_of(key)


def takes(session: LockingSession, number: str) -> bool:
    """Return whether another program gets the lock of this number; it keeps nothing."""
    try:
        call = f"SELECT pg_try_advisory_xact_lock({number})".replace("::", r"\:\:")
        return bool(session.scalar(sa.text(call), {"key": KEY}))
    finally:
        session.rollback()


def test_another_program_is_excluded(session: LockingSession, other: LockingSession) -> None:
    number = documented().format(":key")
    assert takes(other, number)
    session.lock_key(KEY)
    assert not takes(other, number)
    session.rollback()
    other.execute(sa.select(sa.func.pg_advisory_xact_lock(number_of(KEY))))
    assert finds_taken()(session)


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 2**31, 2**63 - 1])
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_number_with_every_driver(
    documents: Database,
    other: LockingSession,
    monkeypatch: pytest.MonkeyPatch,
    driver: str,
    number: int,
) -> None:
    if documents.column == PIPELINED and driver != "psycopg":
        pytest.skip("psycopg 3 alone has a pipeline")
    monkeypatch.setattr("sa_doclock.dialects.postgresql.named_locks.number_of", lambda _: number)
    engine = sa.create_engine(sa.make_url(documents.url).set(drivername=f"postgresql+{driver}"))
    for how in ({}, {"lock_timeout": 0}, {"lock_timeout": 5}, {"shared": True}):
        with LockingSession(engine) as session:
            session.lock_key(KEY, **how)
            assert not takes(other, f"CAST('{number}' AS bigint)")
    engine.dispose()


# Two versions of the library side by side


@pytest.mark.parametrize("how", [{}, {"lock_timeout": 0}, {"lock_timeout": 5}])
def test_both_versions_are_excluded(
    both_numbers: LockingSession, other: LockingSession, how: dict[str, Any]
) -> None:
    assert takes(other, OLD.format(":key"))
    both_numbers.lock_key(KEY, **how)
    assert not takes(other, OLD.format(":key"))  # as an earlier version locks
    assert finds_taken()(other)
    both_numbers.rollback()
    assert takes(other, OLD.format(":key"))


@pytest.mark.parametrize("shared", [False, True])
def test_both_versions_exclude_it(
    both_numbers: LockingSession, other: LockingSession, shared: bool
) -> None:
    other.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(KEY, 0))))
    assert finds_taken(shared=shared)(both_numbers)
    other.rollback()
    other.lock_key(KEY)
    assert finds_taken(shared=shared)(both_numbers)
    with pytest.raises(LockNotAvailable):
        both_numbers.lock_key(KEY, lock_timeout=0.1)


def test_without_the_option_an_earlier_version_is_not_excluded(
    session: LockingSession, other: LockingSession
) -> None:
    session.lock_key(KEY)
    assert takes(other, OLD.format(":key"))
