"""Keys: what doclock_key() makes of its parts, and what no database is asked for."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, doclock_key
from sa_doclock.dialects.named_locks import short_name
from tests.integration.locking.steps import recorded


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
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
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


def test_bad_input_is_reported_before_anything_is_sent(engine: sa.Engine) -> None:
    with LockingSession(engine) as session, recorded(engine) as statements:
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
