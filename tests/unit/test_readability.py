"""Docstrings say what a thing is or does, and few functions do much at once."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import sa_doclock

PACKAGE = Path(sa_doclock.__file__).parent
REPOSITORY = Path(__file__).parents[2]
FOLDERS = [
    PACKAGE,
    *(
        REPOSITORY / name
        for name in ("pytest_sa_doclock", "audit", "tests", "lab", "benchmarks", "migrations")
    ),
]
QUESTIONS = {"What", "Who", "Whose", "Whom", "Whether", "Where", "Which", "Why", "How", "When"}
#: More ways through a function than this take a second reading.
MANY_BRANCHES = 10

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Branch = ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler


def statements(folder: Path, having: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield modules and statements with their places; not expressions, which are ten times as many.

    :param having: a regular expression; files without it are not parsed, which takes longest.
    """
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in statements_in(ast.parse(text)) if re.search(having, text) else ():
            name = getattr(node, "name", "")
            yield f"{path.relative_to(folder).as_posix()} {name}".strip(), node


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from statements_in(child)


def branches(function: Function) -> int:
    """Count what decides: statements, conditions in expressions, operands of "and" and "or"."""
    found = 0
    for node in ast.walk(function):
        if isinstance(node, Branch):
            found += 1
        elif isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            found += 1 + len(node.ifs)
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_every_docstring_says_what_a_thing_is_or_does(folder: Path) -> None:
    questions = [
        f"{place}: {text}" for place, text in all_docstrings(folder) if text.split()[0] in QUESTIONS
    ]
    assert questions == []


def test_a_file_with_a_question_is_read(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('def f():\n    """\n    What it does."""\n')
    (tmp_path / "two.py").write_text("class A:\n    n = 1\n    'How many.'\n")
    assert [text.split()[0] for _, text in all_docstrings(tmp_path)] == ["What", "How"]


#: Only a file with such a text can have a docstring that begins with a question word, or a line with a colon.
SUSPECT = rf"""["']\s*(?:{"|".join(QUESTIONS)})\b|(?m:^\s*\w*["']*\s*:\w)"""


@cache  # two tests read them: to parse the files takes seconds
def all_docstrings(folder: Path) -> list[tuple[str, str]]:
    found = statements(folder, SUSPECT)
    return [(place, text) for place, node in found for text in docstrings(node)]


def docstrings(node: ast.AST) -> Iterator[str]:
    """Yield the node's docstring and those of its attributes, which stand below them."""
    for statement in node.body if isinstance(node, Documented) else ():
        match statement:
            case ast.Expr(ast.Constant(str(text))):
                yield text


def test_docstrings_are_read_wherever_they_stand() -> None:
    text = """
try:
    pass
except A:
    match a:
        case 1:
            def f():
                "Text."
"""
    (place,) = [node for node in statements_in(ast.parse(text)) if list(docstrings(node))]
    assert isinstance(place, ast.FunctionDef)


def test_docstrings_of_attributes_are_read() -> None:
    (holder,) = ast.parse('class A:\n "An A."\n n = 0\n "How many."').body
    assert list(docstrings(holder)) == ["An A.", "How many."]


#: A reference in place of a word, as ``:meth:`lock```; or a field, as ``:raises ValueError: a text``.
REFERENCE, FIELD = re.compile(r"\s*:\w+:`"), re.compile(r":\w[^`:]*:(\s|$)")


def lines_out_of_order(text: str) -> Iterator[str]:
    """Yield the lines that the site would show elsewhere than where they are written.

    It takes a line that begins with a colon for a field, and shows the fields behind the text.
    """
    fields, blank = False, True
    for line in inspect.cleandoc(text).splitlines():
        fields |= FIELD.match(line) is not None
        paragraph = blank and line[:1] not in {"", " ", ":"}
        if REFERENCE.match(line) or (fields and paragraph):
            yield line
        blank = not line


@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_the_site_shows_every_docstring_in_its_order(folder: Path) -> None:
    wrong = [
        f"{place}: {line}"
        for place, text in all_docstrings(folder)
        for line in lines_out_of_order(text)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (":meth:`lock`, and more.", [":meth:`lock`, and more."]),
        ("The same as\n    :meth:`lock`.", ["    :meth:`lock`."]),
        ("Lock.\n\n    :param a: b\n        c.\n\n    Done.", ["Done."]),
        (
            "Lock by :meth:`lock`.\n\n    More.\n\n    :raises A: by\n        a.\n    :returns: b",
            [],
        ),
    ],
)
def test_lines_out_of_order_are_found(text: str, wrong: list[str]) -> None:
    assert [line.strip() for line in lines_out_of_order(text)] == [line.strip() for line in wrong]


@cache
def many_branches() -> list[str]:
    """Return the functions that have many branches, by place: those of the core begin "core/"."""
    return sorted(
        f"{place} {branches(node)}"
        for place, node in statements(PACKAGE)
        if isinstance(node, Function) and branches(node) > MANY_BRANCHES
    )


def test_few_functions_have_many_branches() -> None:
    assert len(many_branches()) <= 3, "\n".join(many_branches())


def test_no_function_of_the_core_has_many_branches() -> None:
    assert [one for one in many_branches() if one.startswith("core/")] == []


def test_branches_are_counted() -> None:
    (function,) = ast.parse("def f(x):\n return [y for y in x if y and x] or 1 if x else 2").body
    assert isinstance(function, ast.FunctionDef)
    assert branches(function) == 5
