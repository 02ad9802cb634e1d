"""The text of a key: its repr(), on one line, of 80 characters at most, whatever the key is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

import sa_doclock
from sa_doclock.keys import document_label, key_text, printable, short_text
from sa_doclock.wait_info import LockConnection, LockWait
from tests.support.models import Order
from tests.support.rows import rows

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
    """Yield what is formatted, and has a key in it that key_text() has not shortened."""
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
