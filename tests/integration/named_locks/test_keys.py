"""Keys: doclock_key() of its parts, and keys that are refused without a query."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockOptions,
    SnapshotConflict,
    WrongIsolation,
    doclock_key,
)
from sa_doclock.dialects.named_locks import short_name
from sa_doclock.dialects.postgresql.named_locks import number_of
from tests.integration.locking.steps import recorded
from tests.integration.named_locks.conftest import KEY, finds_taken
from tests.support.databases import PIPELINED, Database
from tests.support.models import Order


class Kind(str, enum.Enum):
    USER = "user"


MADE: dict[str, tuple[Any, ...]] = {
    "user:42": ("user", 42),
    "user": ("user",),
    "user:-1": (Kind.USER, -1),
    "a%3Ab:c": ("a:b", "c"),
    "a:b%3Ac": ("a", "b:c"),
    "100%25:%253A": ("100%", "%3A"),
    "day:2026-03-01": ("day", date(2026, 3, 1)),
    "file:00000000-0000-0000-0000-0000000000ff": ("file", UUID(int=255)),
    "Zoë Ž": ("Zoë Ž",),
}


@pytest.mark.parametrize(("key", "parts"), MADE.items())
def test_parts_become_a_key_that_can_be_read(key: str, parts: tuple[Any, ...]) -> None:
    assert doclock_key(*parts) == key
    assert type(doclock_key(*parts)) is str


def test_a_number_and_its_text_are_one_key() -> None:
    assert doclock_key("user", 42) == doclock_key("user", "42")


@pytest.mark.parametrize(
    "part",
    [
        None,
        True,
        1.5,
        Decimal(1),
        b"x",
        (1, 2),
        datetime(2026, 3, 1, tzinfo=timezone.utc),
        object(),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_part_that_may_be_written_in_two_ways_is_refused(part: Any) -> None:
    with pytest.raises(TypeError, match="a part of a key must be"):
        doclock_key("user", part)


@pytest.mark.parametrize("parts", [(), ("",), ("user", ""), ("a\0b",), ("\ud800",)], ids=repr)
def test_parts_that_make_no_key_are_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"key"):
        doclock_key(*parts)


@pytest.fixture
def engine_keys(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'keys.db'}")
    yield engine
    engine.dispose()


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"key": 42}, TypeError, "must be a str"),
    ({"key": None}, TypeError, "must be a str"),
    ({"key": b"user"}, TypeError, "must be a str"),
    ({"key": ""}, ValueError, "must not be empty"),
    ({"key": "a\0"}, ValueError, "NUL"),
    ({"key": "\ud800"}, ValueError, "an unpaired surrogate"),
    ({"shared": 1}, TypeError, "shared must be True or False"),
    ({"shared": None}, TypeError, "shared must be True or False"),
    *(({"lock_timeout": value}, TypeError, "lock_timeout must be") for value in ("5", True)),
    *(
        ({"lock_timeout": value}, ValueError, "zero or more seconds")
        for value in (-1, float("nan"), float("inf"))
    ),
]


def test_bad_input_is_reported_before_anything_is_sent(engine_keys: sa.Engine) -> None:
    with LockingSession(engine_keys) as session, recorded(engine_keys) as statements:
        for arguments, kind, words in WRONG:
            with pytest.raises(kind, match=words):
                session.lock_key(**{"key": "user:42", **arguments})
        assert not session.in_transaction()
    assert statements == []


def test_a_plain_key_is_its_own_name() -> None:
    key = "shop.user:a-z_0-9/@+=,"
    assert short_name(key, 64) == key
    assert short_name("x" * 64, 64) == "x" * 64


def test_any_other_gets_a_hash_and_stays_short() -> None:
    names = {
        short_name(key, 64)
        for key in ("x" * 65, "x" * 66, "User", "user ", "user#", "usér", "it's", "日本", "a\\b")
    }
    assert len(names) == 9
    assert all(len(name) <= 64 and name.isascii() for name in names)
    assert not any(set(name) & set("'\\% \"") for name in names)


def test_a_name_is_the_same_in_every_release() -> None:
    name = "shop._ser:_nn#597316cb53f654160ffb3229e3fc698a"
    assert short_name("shop.User:Ann", 64) == name


# --------------------------------------------------------------------------------------------------
# Different keys are different locks, whatever the server does with their names.

LONG = "a document with a very long name, " * 20

PAIRS = (
    ("user:ann", "user:Ann"),  # the same name to MySQL
    ("cafe", "café"),
    ("strasse", "straße"),
    ("user", "user "),
    (LONG, LONG + "!"),
    (LONG.replace(" ", "-"), LONG.replace(" ", "-").upper()),
    ("it's", "it_s"),
    ("100%", "100%%"),
    ("日本", "日木"),
    ("\U0001f511" * 40, "\U0001f511" * 41),
    (":name", ":Name"),
)


@pytest.mark.not_databases("sqlite")
@pytest.mark.parametrize(("one", "another"), PAIRS)
def test_they_are_two_locks(
    session: LockingSession, other: LockingSession, one: str, another: str
) -> None:
    session.lock_key(one)
    assert finds_taken(one)(other)
    assert not finds_taken(another)(other)
    other.lock_key(another)
    session.rollback()
    assert not finds_taken(one)(session)
    assert finds_taken(another)(session)


@pytest.mark.not_databases("sqlite")
@pytest.mark.databases("mysql", "mariadb")
def test_the_server_is_shown_a_name_that_can_be_read(session: LockingSession) -> None:
    session.lock_key("order:42")
    session.lock_key("Order number " * 9)
    for name, holders in {"doclock.order:42": 1, "doclock.order:43": 0}.items():
        used = f"SELECT COUNT(IS_USED_LOCK('{name}'))"
        assert session.connection().exec_driver_sql(used).scalar() == holders


@pytest.mark.not_databases("sqlite")
@pytest.mark.databases("mysql", "mariadb")
def test_the_programs_own_lock_of_that_name_is_another_and_stays(
    make_engine: Callable[..., sa.Engine], other: LockingSession
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, isolation_level="READ COMMITTED")
    with LockingSession(engine) as session:
        session.scalar(sa.text("SELECT GET_LOCK('user:42', 0)"))
        session.lock_key("user:43")
        other.lock_key("user:42", lock_timeout=0)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT RELEASE_LOCK('user:42')").scalar() == 1


# --------------------------------------------------------------------------------------------------
# PostgreSQL's numbers for keys: no one can choose one, and any program can compute it.

#: Found in seconds by inverting hashtextextended(): a user name can look like that.
SAME_OLD_NUMBER = "user:mallory[vQJrh,yMWT#"
OLD = "hashtextextended({}, 0)"
PAGE = Path(__file__).parents[3] / "docs" / "named-locks.md"
DRIVERS = ("psycopg", "psycopg2")

Sessions = Callable[..., LockingSession]


def documented() -> str:
    """Return the number of :key as computed by the page's SQL."""
    found = re.search(
        r"pg_advisory_xact_lock\((\('x'.*::bigint)\);$", PAGE.read_text(), re.MULTILINE
    )
    assert found is not None
    return found[1].replace("'user:42'", "CAST({} AS text)")


@pytest.fixture
def both_numbers(make_engine: Callable[..., sa.Engine]) -> Iterator[LockingSession]:
    """Open a session of a deployment that also runs processes of an earlier version."""
    engine = make_engine(execution_options={"doclock_old_keys": True})
    with LockingSession(engine) as session:
        yield session


@pytest.mark.databases("postgresql")
def test_nobody_can_choose_a_key_that_blocks_another(
    session: LockingSession, other: LockingSession
) -> None:
    same = sa.text(f"SELECT {OLD.format(':one')} = {OLD.format(':other')}")
    assert session.scalar(same, {"one": KEY, "other": SAME_OLD_NUMBER})
    session.lock_key(SAME_OLD_NUMBER)
    other.lock_key(KEY, lock_timeout=0)


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("key", [KEY, "a", "Zoë's own", "日本", "it's 100%:b", "x" * 10_000])
def test_the_page_computes_the_same(session: LockingSession, key: str) -> None:
    number = sa.text("SELECT " + documented().format(":key").replace("::", r"\:\:"))
    assert session.scalar(number, {"key": key}) == number_of(key)


def takes(session: LockingSession, number: str) -> bool:
    """Return whether another program gets the lock of this number; keeps no lock."""
    try:
        call = f"SELECT pg_try_advisory_xact_lock({number})".replace("::", r"\:\:")
        return bool(session.scalar(sa.text(call), {"key": KEY}))
    finally:
        session.rollback()


@pytest.mark.databases("postgresql")
def test_another_program_is_excluded(session: LockingSession, other: LockingSession) -> None:
    number = documented().format(":key")
    assert takes(other, number)
    session.lock_key(KEY)
    assert not takes(other, number)
    session.rollback()
    other.execute(sa.select(sa.func.pg_advisory_xact_lock(number_of(KEY))))
    assert finds_taken()(session)


@pytest.mark.databases("postgresql")
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


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("how", [{}, {"lock_timeout": 0}, {"lock_timeout": 5}])
def test_both_versions_are_excluded(
    both_numbers: LockingSession, other: LockingSession, how: dict[str, Any]
) -> None:
    assert takes(other, OLD.format(":key"))
    both_numbers.lock_key(KEY, **how)
    assert not takes(other, OLD.format(":key"))  # locks like an earlier version
    assert finds_taken()(other)
    both_numbers.rollback()
    assert takes(other, OLD.format(":key"))


@pytest.mark.databases("postgresql")
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


@pytest.mark.databases("postgresql")
def test_without_the_option_an_earlier_version_is_not_excluded(
    session: LockingSession, other: LockingSession
) -> None:
    session.lock_key(KEY)
    assert takes(other, OLD.format(":key"))


# --------------------------------------------------------------------------------------------------
# On SQLite a key is the file's write lock, also in a transaction that began with a read.

Session = LockingSession


def begin_by_a_read(session: Session) -> None:
    session.connection().exec_driver_sql("BEGIN")
    session.get_one(Order, 1)


@pytest.mark.databases("sqlite")
def test_every_key_is_the_same_lock(session: Session, other: Session) -> None:
    session.lock_key(KEY)
    assert finds_taken("another")(other)


@pytest.mark.databases("sqlite")
def test_after_a_read_the_write_lock_is_taken_and_nothing_is_changed(
    session: Session, other: Session
) -> None:
    session.connection().exec_driver_sql("PRAGMA user_version = 7")
    session.commit()
    begin_by_a_read(session)
    session.lock_key(KEY)
    assert finds_taken()(other)
    session.commit()
    assert session.connection().exec_driver_sql("PRAGMA user_version").scalar() == 7


@pytest.mark.databases("sqlite")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="sqlite3 tells no error numbers before")
@pytest.mark.not_databases("sqlite-journal")  # there a reader keeps writers from committing
def test_after_a_read_that_is_old_it_is_a_conflict(session: Session, other: Session) -> None:
    begin_by_a_read(session)
    other.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 99
    other.commit()
    with pytest.raises(SnapshotConflict, match="named lock 'user:42' FOR UPDATE on sqlite"):
        session.lock_key(KEY)
    session.rollback()
    session.lock_key(KEY)


@pytest.mark.databases("sqlite")
def test_after_a_shared_read_it_is_refused(session: Session) -> None:
    session.get_one_entity(Order, 1, LockOptions.SharedRead)
    with pytest.raises(WrongIsolation, match="the transaction reads the snapshot of"):
        session.lock_key(KEY)
