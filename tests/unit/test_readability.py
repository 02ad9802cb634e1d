"""Docstrings state what a thing is or does, and few functions do much at once."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import doclock_audit
import sa_doclock
from tests.support.rows import rows

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
#: A function with more branches than this takes a second reading.
MANY_BRANCHES = 10

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Branch = ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler


def statements(folder: Path, having: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield modules and statements with their places, but not expressions: there are ten times as many.

    :param having: a regular expression; files that do not match are not parsed, because parsing is slow.
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
    """Count branches: statements, conditions in expressions, operands of "and" and "or"."""
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


#: Only a file with such a text can contain a docstring that begins with a question word, or a
#: line with a colon.
SUSPECT = rf"""["']\s*(?:{"|".join(QUESTIONS)})\b|(?m:^\s*\w*["']*\s*:\w)"""


@cache  # for two tests: parsing the files takes seconds
def all_docstrings(folder: Path) -> list[tuple[str, str]]:
    found = statements(folder, SUSPECT)
    return [(place, text) for place, node in found for text in docstrings(node)]


def docstrings(node: ast.AST) -> Iterator[str]:
    """Yield the docstrings of the node and of its attributes."""
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


#: A reference instead of a word, as ``:meth:`lock```; or a field, as ``:raises ValueError: a text``.
REFERENCE, FIELD = re.compile(r"\s*:\w+:`"), re.compile(r":\w[^`:]*:(\s|$)")


def lines_out_of_order(text: str) -> Iterator[str]:
    """Yield the lines that the site would move away from their place in the text.

    It takes a line that begins with a colon for a field, and shows the fields after the text.
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
    """Return the functions with many branches, by place; those of the core begin with "core/"."""
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


# --------------------------------------------------------------------------------------------------
# Private names of SQLAlchemy appear in two files, one each in the core and the guard; a session's in session/.
#
# A driver's private names appear in its dialect's module.

PACKAGE_PRIVATE_NAMES, AUDITOR = (
    Path(package.__file__ or "").parent for package in (sa_doclock, doclock_audit)
)
MODULES = {
    **{
        str(path.relative_to(PACKAGE_PRIVATE_NAMES)): path
        for path in sorted(PACKAGE_PRIVATE_NAMES.rglob("*.py"))
    },
    **{str(path.relative_to(AUDITOR.parent)): path for path in sorted(AUDITOR.rglob("*.py"))},
}
EXEMPT = ("sqlalchemy_internals.py", "dml_internals.py")
PROTOCOL = {"events.py": {"_target_class_doc", "_dispatch_target"}}
"""The attributes that a class of events must define, as SQLAlchemy's own do."""


OF_DRIVERS = {"dialects/postgresql/pipeline.py": {"_fetch_gen"}}
"""The private names of drivers that a module needs; it says why, and which test fails without."""


DOCUMENTED = {"_asdict", "_replace", "_current_frames", "_getframe"}
"""Methods of every NamedTuple, and two functions of sys."""


def is_private(name: object) -> bool:
    if not isinstance(name, str) or name in DOCUMENTED:
        return False
    return name.startswith("_") and not name.endswith("__")


def read(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, object and name of every private attribute that the code reads or sets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.lineno, ast.unparse(node.value), node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "setattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(name.value):
                yield node.lineno, ast.unparse(node.args[0]), str(name.value)


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that a module defines in its own classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield item.name
                elif isinstance(item, ast.AnnAssign):
                    yield ast.unparse(item.target)
                elif isinstance(item, ast.Assign):
                    yield from (ast.unparse(target) for target in item.targets)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) in ("self", "cls")
        ):
            yield node.attr


def findings(tree: ast.Module, module: str, ours: set[str]) -> list[str]:
    """Return the private names that this module reads but does not own.

    ``self`` and ``cls`` may use names that any class of the package defines, because they may inherit
    them. Other objects may use only names that the module itself defines.
    """
    own = set(defined(tree)) - PROTOCOL.get(module, set()) | OF_DRIVERS.get(module, set())
    found = []
    for line, of, name in read(tree):
        if name not in (ours if of in ("self", "cls", "super()") else own):
            found.append(f"{module}:{line}: {of}.{name}")
        elif of == "session" and not module.startswith(("core/session/", "session/")):
            found.append(f"{module}:{line}: {of}.{name} outside of session/")
    return found


@pytest.fixture(scope="module")
def trees() -> Mapping[str, ast.Module]:
    """Parse all modules of the package once."""
    return {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


@pytest.fixture(scope="module")
def ours(trees: Mapping[str, ast.Module]) -> set[str]:
    return {name for tree in trees.values() for name in defined(tree)}


@rows("module", MODULES)
def test_a_module_reads_no_private_name_of_others(
    trees: Mapping[str, ast.Module], ours: set[str], module: str
) -> None:
    found = findings(trees[module], module, ours)
    if module.startswith(("core/session/", "session/")):  # its modules share one session
        found = [line for line in found if " session._" not in line]
    if module not in EXEMPT:
        assert found == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("pool._max_overflow", "x.py:1: pool._max_overflow"),
        ("getattr(pool, '_max_overflow', None)", "x.py:1: pool._max_overflow"),
        ("class A(Session):\n    def f(self):\n        self._flushing", "x.py:3: self._flushing"),
        (
            "class A:\n    _b = 1\n\ndef f(session):\n    session._b",
            "x.py:5: session._b outside of session/",
        ),
    ],
    ids=["attribute", "getattr", "inherited", "session"],
)
def test_such_a_name_is_found(ours: set[str], source: str, line: str) -> None:
    assert findings(ast.parse(source), "x.py", ours) == [line]


def test_what_a_module_defines_itself_is_its_own() -> None:
    tree = ast.parse("class A:\n    def _f(self): self._f()\nA()._f()")
    assert findings(tree, "x.py", {"_f"}) == []
