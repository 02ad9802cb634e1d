"""Keys as text in the table of check-outs: no two keys share a text, and each can be read back."""

from __future__ import annotations

import enum
import json
import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy.orm import Mapper, registry
from sqlalchemy.types import TypeEngine, UserDefinedType

from sa_doclock import LockNotSupported
from sa_doclock.features.checkouts.key_texts import read_key, written_key
from tests.support.rows import rows

BERLIN = timezone(timedelta(hours=1))
NOON = datetime(2026, 11, 25, 12, 0, 0, 1, tzinfo=timezone.utc)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Code(sa.TypeDecorator[str]):
    """Values that the database stores in a different form."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: Any) -> Any:
        return int(value[1:])

    def process_result_value(self, value: Any, _dialect: Any) -> Any:
        return f"#{value}"


class Plain(sa.TypeDecorator[int]):
    """A type without its own conversion."""

    impl = sa.Integer
    cache_ok = True


class Unknown(UserDefinedType[Any]):
    cache_ok = True


def mapper_with(*types: TypeEngine[Any]) -> Mapper[Any]:
    """Map a class whose primary key has columns of these types."""
    mappers = registry()
    columns = [sa.Column(f"k{number}", one, primary_key=True) for number, one in enumerate(types)]
    table = sa.Table("documents", mappers.metadata, *columns)
    return mappers.map_imperatively(type("Document", (), {}), table)


@rows(
    ("column_type", "value", "text"),
    [
        (sa.Integer(), -42, "-42"),
        (sa.String(), 'a\n,"ä', 'a\n,"ä'),
        (sa.Numeric(10, 2), Decimal("1.50"), "1.5"),
        (sa.Numeric(10, 2), Decimal(100), "100"),
        (sa.Numeric(10, 2), Decimal("-0.00"), "0"),
        (sa.Float(), 0.1, "0.1"),
        (sa.Boolean(), True, "1"),
        (sa.Boolean(), False, "0"),
        (sa.LargeBinary(), b"\x00\xff", "00ff"),
        (sa.Date(), date(2026, 11, 25), "2026-11-25"),
        (sa.Time(), time(10, 2), "10:02:00"),
        (sa.DateTime(), NOON.replace(tzinfo=None), "2026-11-25T12:00:00.000001"),
        (sa.DateTime(timezone=True), NOON.astimezone(BERLIN), "2026-11-25T12:00:00.000001+00:00"),
        (sa.Uuid(), uuid.UUID(int=10), str(uuid.UUID(int=10))),
        (sa.Uuid(as_uuid=False), uuid.UUID(int=10).hex, str(uuid.UUID(int=10))),
        (sa.Enum(Color), Color.RED, "RED"),
        (
            sa.Enum(Color, values_callable=lambda kind: [one.value for one in kind]),
            Color.RED,
            "red",
        ),
        (sa.Enum("x", "y"), "x", "x"),
        (Code(), "#7", "7"),
        (Plain(), 7, "7"),
        (Unknown(), "7", '"7"'),
        (Unknown(), 7, "7"),
    ],
)
def test_a_key_of_each_type(column_type: TypeEngine[Any], value: Any, text: str) -> None:
    mapper = mapper_with(column_type)
    assert written_key(mapper, (value,)) == text
    (found,) = read_key(mapper, text) or ()
    assert found == value or str(found) == str(uuid.UUID(str(value)))
    pair = mapper_with(column_type, sa.Integer())
    assert json.loads(written_key(pair, (value, 1))) == [text, "1"]
    assert read_key(pair, written_key(pair, (value, 1))) == (found, 1)


def test_a_value_that_no_text_stands_for() -> None:
    with pytest.raises(LockNotSupported, match="cannot be checked out"):
        written_key(mapper_with(Unknown()), (object(),))


def test_a_part_that_is_null() -> None:
    mapper = mapper_with(sa.String(), sa.String())
    assert read_key(mapper, written_key(mapper, ("null", None))) == ("null", None)


PARTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)
TEXTS = st.tuples(PARTS, PARTS)
PAIR = mapper_with(sa.String(), sa.String())


@given(TEXTS, TEXTS)
@example(("a b", "c"), ("ab", "c"))
@example(("a", "b,c"), ("a,b", "c"))
def test_different_keys_are_different_texts(one: tuple[str, str], two: tuple[str, str]) -> None:
    assert (written_key(PAIR, one) == written_key(PAIR, two)) is (one == two)
    assert read_key(PAIR, written_key(PAIR, one)) == one


@given(st.tuples(st.integers(-(2**63), 2**63 - 1), st.decimals(-999, 999, places=2)))
def test_numbers_are_read_back(key: tuple[int, Decimal]) -> None:
    mapper = NUMBERS
    assert read_key(mapper, written_key(mapper, key)) == key


NUMBERS = mapper_with(sa.BigInteger(), sa.Numeric(10, 2))
