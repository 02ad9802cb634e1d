"""First locks, declarations and new classes, while other threads use the classes."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, ForeignKey, Integer, create_engine, event, inspect, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column, relationship

import doclock_audit
import pytest_sa_doclock
import sa_doclock
from sa_doclock import LockingSession, LockOptions, document
from sa_doclock.core.documents import any_declared, declared_roots, mapper_cache
from sa_doclock.core.documents.mapping import clear_mapper_caches
from tests.support.rows import rows


class Classes(NamedTuple):
    engine: Engine
    order: type[Any]
    line: type[Any]


def new_class(base: type[Any], name: str, **columns: Any) -> type[Any]:
    key = mapped_column(Integer, primary_key=True)
    return type(name, (base,), {"__tablename__": name.lower(), "id": key, **columns})


@pytest.fixture
def classes(tmp_path: Path) -> Iterator[Classes]:
    """Make classes that no session has used, with one row each."""

    class Base(DeclarativeBase):
        pass

    order = new_class(Base, "Orders", note=mapped_column(Integer))
    line = new_class(
        Base,
        "Lines",
        order_id=mapped_column(ForeignKey("orders.id")),
        order=relationship(order, backref="lines"),
    )
    engine = create_engine(f"sqlite:///{tmp_path / 'file.db'}")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(line(id=1, order=order(id=1)))
        session.commit()
    yield Classes(engine, order, line)
    engine.dispose()


def lock_first(classes: Classes) -> None:
    with LockingSession(classes.engine) as session:
        order = session.get_one(classes.order, 1)
        assert order.lines
        assert session.get_document(classes.order, 1, LockOptions.ForUpdate) is order


def in_another_thread(function: Callable[..., Any], *args: Any) -> Callable[..., None]:
    """Return a listener that runs the function in another thread, once."""
    numbers = count()

    def listener(*_: Any, **__: Any) -> None:
        if next(numbers) == 0:
            with ThreadPoolExecutor() as pool:
                pool.submit(function, *args).result(timeout=30)

    return listener


def test_a_first_lock_comes_while_an_attribute_is_set(classes: Classes) -> None:
    event.listen(classes.line.order, "set", in_another_thread(lock_first, classes))
    line, order = classes.line(), classes.order()
    line.order = order
    assert order.lines == [line]


def test_a_first_lock_comes_while_an_object_is_refreshed(classes: Classes) -> None:
    event.listen(classes.order, "refresh", in_another_thread(lock_first, classes))
    with Session(classes.engine) as session:
        session.refresh(session.get(classes.order, 1))


def test_a_first_lock_comes_while_an_error_is_handled(classes: Classes) -> None:
    event.listen(classes.engine, "handle_error", in_another_thread(lock_first, classes))
    with classes.engine.connect() as connection, pytest.raises(OperationalError):
        connection.execute(text("SELECT no_such_column"))


def test_a_document_is_declared_while_its_rows_are_written(classes: Classes) -> None:
    declare = in_another_thread(document, classes.order)
    event.listen(classes.order, "after_update", declare)
    with Session(classes.engine) as session:
        session.get_one(classes.order, 1).note = 1
        session.commit()


def test_the_program_adds_and_removes_listeners_after_a_lock_as_before(classes: Classes) -> None:
    session = LockingSession(classes.engine)
    document(classes.order)
    session.get_one_document(classes.order, 1, LockOptions.ForUpdate)
    heard: list[str] = []
    listeners = {name: in_order(heard, name) for name in ("last", "first")}
    for name, listener in listeners.items():
        event.listen(classes.order, "before_update", listener, insert=name == "first")
    session.get_one(classes.order, 1).note = 1
    session.flush()
    event.remove(classes.order, "before_update", listeners["first"])
    session.get_one(classes.order, 1).note = 2
    session.flush()
    assert heard == ["first", "last", "last"]
    session.close()


def in_order(heard: list[str], name: str) -> Callable[..., None]:
    def listener(*_: Any) -> None:
        heard.append(name)

    return listener


def test_what_was_computed_from_old_mappers_is_not_cached() -> None:
    answers = count()

    @mapper_cache
    def answer() -> int:
        number = next(answers)
        if number == 0:
            clear_mapper_caches()  # as in another thread that configured a class
        return number

    assert (answer(), answer()) == (1, 1)


def test_mappers_that_are_configured_each_time_are_an_error_and_no_loop_without_end() -> None:
    looked = count()

    @mapper_cache
    def answer() -> int:
        assert next(looked) < 1000
        clear_mapper_caches()
        return 0

    with pytest.raises(RuntimeError, match="configured"):
        answer()


@pytest.fixture
def switches() -> Iterator[None]:
    """Make threads switch as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.slow
@pytest.mark.usefixtures("switches")
def test_classes_are_declared_while_others_look_for_documents() -> None:
    class Base(DeclarativeBase):
        pass

    barrier, done, declared = threading.Barrier(8), threading.Event(), list[type[Any]]()

    def declare() -> None:
        barrier.wait(30)
        for number in range(200):
            declared.append(document(type(f"Declared{number}", (), {})))
        done.set()

    def look() -> None:
        barrier.wait(30)
        while not done.is_set():
            declared_roots()
            any_declared()

    order = document(new_class(Base, "Orders"))
    with ThreadPoolExecutor(8) as pool:
        for step in [pool.submit(declare), *(pool.submit(look) for _ in range(7))]:
            step.result(timeout=60)
    assert inspect(order) in declared_roots()


# --------------------------------------------------------------------------------------------------
# A module's state shared by all threads needs a sentence that says why it is safe, even without a GIL.
#
# A rule finds this state, not a list: a name of a module or class that is bound to an empty container,
# or that the module changes; a name that a function rebinds; a cached function.

PACKAGES = [
    Path(one.__file__ or "").parent for one in (sa_doclock, pytest_sa_doclock, doclock_audit)
]
MODULES = {
    str(path.relative_to(package.parent)): path
    for package in PACKAGES
    for path in sorted(package.rglob("*.py"))
}
SENTENCE = "# Threads: "
EMPTY = {
    *("dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter", "count"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet"),
}
CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"),
    *("popleft", "remove", "setdefault", "update"),
}
CACHES = {"cache", "lru_cache"}
CONSTANT = ("Mapping[", "Sequence[")  # of a name that the module does not change


def name_of(node: ast.AST) -> str:
    """Return the last name of ``functools.lru_cache(...)``, ``set[str]()``, ``WeakSet``."""
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_empty(value: ast.AST | None) -> bool:
    if isinstance(value, (ast.Dict, ast.List)):
        return not ast.unparse(value).strip("{}[]")
    return isinstance(value, ast.Call) and not value.keywords and name_of(value) in EMPTY


def bound(body: list[ast.stmt]) -> Iterator[tuple[str, int, bool]]:
    """Yield the names that a module and its classes bind, their lines, and whether they are bound to empty containers."""
    for node in body:
        if isinstance(node, ast.Assign):
            yield from (
                (ast.unparse(one), node.lineno, is_empty(node.value)) for one in node.targets
            )
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            constant = any(one in ast.unparse(node.annotation) for one in CONSTANT)
            yield ast.unparse(node.target), node.lineno, is_empty(node.value) and not constant
        elif isinstance(node, ast.ClassDef):
            # A name that is also a local variable is not a changed attribute.
            yield from (
                (f"{node.name}.{name}", line, empty) for name, line, empty in bound(node.body)
            )


def changed(tree: ast.Module) -> Iterator[str]:
    """Yield the names that the module changes, or that its functions rebind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        elif (isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)) or (
            isinstance(node, ast.Attribute) and node.attr in CHANGES
        ):
            yield ast.unparse(node.value)


def has_cache(tree: ast.Module) -> bool:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return any(name_of(one) in CACHES for node in functions for one in node.decorator_list)


def state_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the state that a module keeps, with the line that binds it."""
    names = {*changed(tree)}
    for name, line, empty in bound(tree.body):
        if name != "__all__" and (empty or name in names):
            yield name, line


def unexplained(text: str) -> list[str]:
    """Return the names without a sentence on their line, or in the lines above it up to a blank line.

    The caches of a module share one sentence, anywhere in the module.
    """
    lines, tree = text.splitlines(), ast.parse(text)
    missing = []
    if has_cache(tree) and not re.search(f"{SENTENCE}.*cache", text):
        missing.append("cached functions")
    for name, line in state_of(tree):
        above = line - 1
        while above > 0 and lines[above - 1].strip():
            above -= 1
        if not any(SENTENCE in one for one in lines[above:line]):
            missing.append(f"{line}: {name}")
    return missing


@rows("module", MODULES)
def test_what_a_module_keeps_is_safe_in_threads_and_says_why(module: str) -> None:
    assert unexplained(MODULES[module].read_text(encoding="utf-8")) == []


@rows(
    "text",
    [
        "_seen = {}",
        "_seen: Final = set[str]()",
        "class C:\n    seen: dict[str, int] = {}",
        "_seen = WeakKeyDictionary()",
        "_numbers = itertools.count(1)",
        "_names = {'a': 1}\ndef f():\n    _names['b'] = 2",
        "_names = ['a']\ndef f():\n    _names.append('b')",
        "_last = None\ndef f():\n    global _last",
        "@lru_cache(maxsize=1)\ndef f(): ...",
    ],
)
def test_the_rule_finds_what_is_kept(text: str) -> None:
    assert len(unexplained(text)) == 1
    lines = text.splitlines()
    place = 1 if lines[0].startswith("class") else 0
    explained = [*lines[:place], f"    {SENTENCE}a cache is safe."[4 - 4 * place :], *lines[place:]]
    assert unexplained("\n".join(explained)) == []


@rows(
    "text",
    ["_NAMES = {'a': 1}", "x: Mapping[str, int] = {}", "def f():\n    seen = {}", "_lock = Lock()"],
)
def test_what_does_not_change_is_let_alone(text: str) -> None:
    assert unexplained(text) == []
