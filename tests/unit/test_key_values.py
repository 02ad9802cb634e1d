"""Each column type converts a key to the value of its rows, or refuses it.

Some refused values would hang the conversion: ``int(Decimal("1e10000000"))`` never ends. Only the
order of the checks prevents that call.
"""

from __future__ import annotations

import ast
import enum
import uuid
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import inspect
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeDecorator, TypeEngine

import sa_doclock
from sa_doclock.core.documents import key_values
from sa_doclock.core.documents.key_values import key_value, plain_type
from sa_doclock.keys import document_label, key_text, printable, short_text
from sa_doclock.tools.explain import some_value
from sa_doclock.wait_info import LockConnection, LockWait
from tests.support.models import Order
from tests.support.rows import rows


class Season(enum.Enum):
    spring = "s"
    autumn = "a"


class Word(str, enum.Enum):
    one = "one"


class Rank(enum.IntEnum):
    first = 1


class Code(TypeDecorator[str]):
    """A number in the database, ``"No. 12"`` in Python."""

    impl = sa.Integer
    cache_ok = True


class AnyType(sa.types.UserDefinedType[Any]):
    cache_ok = True


ONE = uuid.UUID(int=1)
ARABIC = "\u0664\u0662"
"""42 in Arabic digits, which Python takes for a number, and no database does."""
UNSIGNED = mysql.BIGINT(unsigned=True)
OBJECTS = [Order(id=1), Order, Order.id == 5, Order.id, sa.select(Order.id), sa.text("1")]
CONTAINERS: list[Any] = [[1], {"id": 1}, {1}]
STRANGE = [*OBJECTS, *CONTAINERS, object(), 1j, Fraction(1, 2), int, range(3)]
NO_NUMBERS = [
    *(
        "",
        "x",
        "nan",
        "NaN",
        "sNaN",
        "inf",
        "-Infinity",
        "0x10",
        "1_000",
        ARABIC,
        "\uff11",
        "1e",
        "1 2",
    ),
    *("1e300000", "1e10000000", "1e999999999999999999999", "9" * 5000, "0" * 1000 + "1"),
    *(10**5000, -(10**5000), float("nan"), float("inf"), Decimal("nan"), Decimal("sNaN")),
    *(Decimal("inf"), Decimal("1e300000"), Decimal("1e10000000"), Decimal("1e999999999999999999")),
]
AMERICAN = timezone(timedelta(hours=-5))

#: For each type: the converted values, those that raise ValueError, and those that raise TypeError.
TYPES: dict[str, tuple[TypeEngine[Any], dict[Any, Any], list[Any], list[Any]]] = {
    "Integer": (
        sa.Integer(),
        {"1": 1, " 1\n": 1, "+1": 1, "-1": -1, "1.0": 1, "1e2": 100, "0e999999999": 0}
        | {Decimal("3.00"): 3, Decimal("0e999999999"): 0, Rank.first: 1, 2**40: 2**40}
        | {2**63 - 1: 2**63 - 1, "-9223372036854775808": -(2**63), 2.0: 2},
        [
            *NO_NUMBERS,
            *(1.5, "1.5", Decimal("1.5"), Decimal("1e-300000"), 1e300, 2**63, -(2**63) - 1),
            "9223372036854775808",
        ],
        [*STRANGE, b"42", ONE, date(2024, 1, 1), Season.spring],
    ),
    "SmallInteger": (sa.SmallInteger(), {"70000": 70000, True: 1}, [2**63], [b"1"]),
    "BigInteger, a variant unsigned": (
        sa.BigInteger().with_variant(UNSIGNED, "mysql"),
        {str(2**64 - 1): 2**64 - 1},
        [2**64, -(2**63) - 1],
        [b"1"],
    ),
    "Numeric(5, 2)": (
        sa.Numeric(5, 2),
        {"1.5": Decimal("1.5"), "0.10": Decimal("0.1"), 0.1: Decimal("0.1"), 7: Decimal(7)}
        | {Decimal("999.99"): Decimal("999.99"), "1.5000": Decimal("1.5"), "0e9": Decimal(0)},
        [*NO_NUMBERS, 1000, "1000", "0.001", Decimal("1e-300000"), 0.123, 10**900],
        [*STRANGE, b"1", ONE, Season.spring],
    ),
    "Numeric": (
        sa.Numeric(),
        {"1.000001": Decimal("1.000001")}
        | {number: Decimal(number) for number in (10**900, 2**3_321 - 1)},
        [*NO_NUMBERS, Decimal("1e-300000")],
        [b"1"],
    ),
    "Float": (
        sa.Float(),
        {"0.1": 0.1, Decimal("0.1"): 0.1, 7: 7.0, 1e300: 1e300},
        [*NO_NUMBERS, "1e400", "1e-400", 2**53 + 1],
        [*STRANGE, b"1", Season.spring],
    ),
    "Float as Decimal": (
        sa.Float(24, asdecimal=True),
        {"1e100": Decimal("1e100"), 0.1: Decimal("0.1")},
        [*NO_NUMBERS],
        [b"1"],
    ),
    "String": (
        sa.String(5),
        {"1e300000": "1e300000", "nan": "nan", ARABIC: ARABIC, "a\nb": "a\nb", "": ""}
        | {"x" * 5000: "x" * 5000, 42: "42", -(2**70): str(-(2**70)), Word.one: "one"}
        | {Rank.first: "1", ONE: str(ONE), date(2024, 1, 2): "2024-01-02"},
        ["a\0", "\ud800", True, 1.0, Decimal(1), 10**5000, datetime(2024, 1, 2)],  # noqa: DTZ001
        [*STRANGE, b"a", Season.spring],
    ),
    "Text": (sa.Text(), {42: "42"}, [1.5], [b"a"]),
    "Enum of a class": (
        sa.Enum(Season),
        {Season.spring: Season.spring, "spring": Season.spring},
        ["s", "winter", "x" * 5000, ""],
        [*STRANGE, b"spring", 1, Rank.first],
    ),
    "Enum of values": (
        sa.Enum(Season, values_callable=lambda found: [one.value for one in found]),
        {Season.spring: Season.spring, "s": Season.spring},
        ["spring"],
        [1],
    ),
    "Enum of texts": (sa.Enum("a", "b"), {"a": "a"}, ["c"], [1, Season.spring]),
    "Uuid": (
        sa.Uuid(),
        {ONE: ONE, str(ONE): ONE, ONE.hex: ONE, f"{{{ONE}}}": ONE, ONE.urn: ONE},
        ["", "x", "0" * 5000, "\u0664" * 32, "0x" + "0" * 30, "_" * 32],
        [*STRANGE, 1, b"1"],
    ),
    "Uuid as text": (
        sa.Uuid(as_uuid=False),
        {ONE: str(ONE), "A" * 32: "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"},
        ["x"],
        [1],
    ),
    "Date": (
        sa.Date(),
        {
            "2024-01-02": date(2024, 1, 2),
            datetime(2024, 1, 2): date(2024, 1, 2),  # noqa: DTZ001
        },
        [
            "",
            "x",
            "2024-02-30",
            "20240102",
            "\u0662\u0660\u0662\u0664-01-02",
            "1" * 5000,
            datetime(2024, 1, 2, 3),  # noqa: DTZ001
        ],
        [*STRANGE, 1, b"1"],
    ),
    "DateTime": (
        sa.DateTime(),
        {
            date(2024, 1, 2): datetime(2024, 1, 2),  # noqa: DTZ001
            "2024-01-02": datetime(2024, 1, 2),  # noqa: DTZ001
            "2024-01-02 03:04:05.678": datetime(2024, 1, 2, 3, 4, 5, 678000),  # noqa: DTZ001
            "2024-01-02T03:04-05:00": datetime(2024, 1, 2, 3, 4, tzinfo=AMERICAN),
        },
        ["", "x", "2024-01-02T25:00", "1" * 5000],
        [*STRANGE, 1, b"1"],
    ),
    "Time": (sa.Time(), {"03:04": time(3, 4)}, ["x", "25:00"], [1, *OBJECTS]),
    "LargeBinary": (
        sa.LargeBinary(),
        {bytes(2): b"\0\0", memoryview(b"a"): b"a"},
        [],
        [*STRANGE, "a", 1],
    ),
    "Boolean": (sa.Boolean(), {1: True, 0: False}, [2, 10**5000], [*STRANGE, "true", 1.0]),
    "TypeDecorator": (
        Code(),
        {"No. 12": "No. 12", b"1": b"1", ("a", 1): ("a", 1)},
        [10**5000],
        [*OBJECTS, *CONTAINERS],
    ),
    "a type of a driver": (AnyType(), {"1": "1", 1: 1}, [10**5000], [*OBJECTS, *CONTAINERS]),
    "another type for each database": (
        sa.String(36).with_variant(sa.Uuid(), "postgresql"),
        {ONE: ONE, "x": "x"},
        [],
        [*OBJECTS, *CONTAINERS],
    ),
}

CONVERTED = [
    pytest.param(type_, given, found, id=f"{name}-{position}")
    for name, (type_, values, _, _) in TYPES.items()
    for position, (given, found) in enumerate(values.items())
]
REFUSED = [
    pytest.param(type_, error, given, id=f"{name}-{error.__name__}-{position}")
    for name, (type_, _, *refused) in TYPES.items()
    for error, values in zip((ValueError, TypeError), refused, strict=True)
    for position, given in enumerate(values)
]


@rows(("type_", "given", "found"), CONVERTED)
def test_a_value_is_the_one_that_rows_have(type_: TypeEngine[Any], given: Any, found: Any) -> None:
    value = key_value(type_, given)
    assert value == found
    assert type(value) is type(found)


@rows("name", TYPES)
def test_a_value_that_rows_have_stays_as_it_is(name: str) -> None:
    type_, values, *_ = TYPES[name]
    for value in values.values():
        assert key_value(type_, value) == value
    assert key_value(type_, None) is None


@rows(("type_", "error", "given"), REFUSED)
def test_another_value_is_refused_in_a_short_text(
    type_: TypeEngine[Any], error: type[Exception], given: Any
) -> None:
    with pytest.raises(error) as caught:
        key_value(type_, given)
    assert type(caught.value) is error
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("exponent", [1_000, 300_000, 10_000_000, 999_999_999])
def test_no_number_is_written_out_that_is_too_long(
    monkeypatch: pytest.MonkeyPatch, exponent: int
) -> None:
    def never(number: Any) -> None:
        pytest.fail(f"{number} is written out")

    monkeypatch.setattr(key_values, "int", never, raising=False)
    for given in (f"1e{exponent}", f"-1.5e{exponent}", Decimal(f"1e{exponent}")):
        with pytest.raises(ValueError, match="is no"):
            key_value(sa.Integer(), given)


def test_only_integers_and_texts_need_no_look() -> None:
    plain = {name for name, (type_, *_) in TYPES.items() if plain_type(type_) is not None}
    integers = {"Integer", "SmallInteger", "BigInteger, a variant unsigned"}
    assert plain == integers | {"String", "Text"}


@rows("name", TYPES)
def test_some_value_is_one_that_the_column_can_have(name: str) -> None:
    type_ = TYPES[name][0]
    if name in ("TypeDecorator", "a type of a driver", "another type for each database"):
        with pytest.raises(LookupError):
            some_value(type_)
    else:
        found = some_value(type_)
        assert key_value(type_, found) == found


@rows("value", [5, "5"])
def test_a_type_with_another_type_of_python_on_some_database_gets_what_is_given(
    value: object,
) -> None:
    assert key_value(sa.String().with_variant(sa.Integer(), "mysql"), value) is value


# --------------------------------------------------------------------------------------------------
# The text of a key: its repr(), on one line, at most 80 characters, for any key.

PACKAGE = Path(sa_doclock.__file__).parent
FORGED = "x\nWARNING sa_doclock Order 1: \x1b[2Jlost\u202e\u2028"


class Forging:
    def __repr__(self) -> str:
        return FORGED


class Failing:
    def __repr__(self) -> str:
        raise RuntimeError


def circle() -> list[Any]:
    found: list[Any] = [1]
    found.append(found)
    return found


def circle_of_dicts() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["again"] = found
    return found


SHORT = {
    "int": (42, "42"),
    "negative": (-42, "-42"),
    "text": ("ab", "'ab'"),
    "line break": ("a\nb", r"'a\nb'"),
    "escape code": ("\x1b[2J", r"'\x1b[2J'"),
    "tuple": ((2024, "a\n"), r"(2024, 'a\n')"),
    "dict in its order": ({"year": 2024, "number": 1}, "{'year': 2024, 'number': 1}"),
    "None": (None, "None"),
    "largest int": (2**256 - 1, str(2**256 - 1)),
    "long int": (10**5000, "<an integer of 16610 bits>"),
    "circle": (circle(), "[1, [1, [...]]]"),
    "circle of dicts": (circle_of_dicts(), "{'again': {'again': {...}}}"),
}
LONG = {
    "text": "x" * 10_000,
    "line breaks": "\n" * 10_000,
    "bytes": b"\n" * 10_000,
    "tuple": ("x" * 10_000,) * 10_000,
    "dict": {"x" * number: "y" * 10_000 for number in range(1_000)},
    "negative int": -(10**100_000),
    "own repr": Forging(),
    "no repr": Failing(),
}


@rows(("key", "text"), SHORT.values(), ids=SHORT)
def test_a_short_key_is_written_as_repr_writes_it(key: Any, text: str) -> None:
    assert key_text(key) == text


@rows("key", LONG.values(), ids=LONG)
def test_any_other_is_on_one_line_and_short(key: Any) -> None:
    text = key_text(key)
    assert text.isprintable()
    assert len(text) <= 80


def test_what_is_longer_than_80_characters_shows_its_ends() -> None:
    assert key_text("a" * 77 + "b") == repr("a" * 77 + "b")
    assert key_text("a" * 79 + "b").startswith("'aaa")
    assert key_text("a" * 79 + "b").endswith("aab'")


def test_the_repr_of_a_mapped_object_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Order, "__repr__", Failing.__repr__, raising=False)
    assert "Order object at" in key_text(Order(id=1))
    assert "Mapper object at" in key_text(inspect(Order))


def test_a_key_that_a_server_tells_has_no_quotes() -> None:
    assert short_text("42") == "42"
    assert short_text("a\nb") == r"a\nb"
    assert len(short_text("\n" * 10_000)) == 80


def test_a_document_and_a_named_lock_are_named_by_it() -> None:
    for entity in (Order, None):
        text = document_label(entity, FORGED)
        assert text.isprintable()
        assert len(document_label(entity, "x" * 10_000)) < 100


def test_what_a_server_tells_is_on_one_line() -> None:
    connection = LockConnection(1, FORGED, FORGED, FORGED, None, f"SELECT '{FORGED}'", host=FORGED)
    for table in (None, f"orders{FORGED}"):
        for key in (None, FORGED, "\n" * 10_000):
            wait = LockWait(connection, connection, connection, table, key, 1.0)
            assert str(wait).isprintable()
            assert len(str(wait)) < 1_500
    assert printable(FORGED) == repr(FORGED)[1:-1]


NAMES = {"ident", "idents", "identity", "identities"}
TEXTS = {"key_text", "document_label"}


def raw_keys(tree: ast.AST) -> Iterator[str]:
    """Yield each formatted value that contains a key which key_text() did not shorten."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and has_key(node.value):
            yield ast.unparse(node)


def has_key(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):  # "ident is None"
        return False
    if isinstance(node, ast.Call) and ast.unparse(node.func) in TEXTS:
        return False
    if isinstance(node, (ast.Name, ast.Attribute)):
        return ast.unparse(node).rpartition(".")[2] in NAMES
    return any(map(has_key, ast.iter_child_nodes(node)))


MODULES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}


@rows("module", MODULES)
def test_no_text_of_ours_formats_a_key_as_it_is(module: str) -> None:
    assert list(raw_keys(ast.parse(MODULES[module].read_text()))) == []


@pytest.mark.parametrize("text", ["f'{ident}'", "f'{error.ident!r}'", "f'{str(one.identity):>5}'"])
def test_such_a_text_is_found(text: str) -> None:
    assert list(raw_keys(ast.parse(text)))


def test_a_key_that_is_made_a_text_is_not() -> None:
    text = "f'{0 if ident is None else key_text(public_key(identity))}'"
    assert list(raw_keys(ast.parse(text))) == []
