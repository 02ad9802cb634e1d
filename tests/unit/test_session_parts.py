"""The parts of a session: its named groups, and the hooks of the others."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_type_hints
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, create_engine, event, literal, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import sa_doclock
from sa_doclock import LockingSession, LockMisuse, LockOptions
from sa_doclock.core.documents import mapper_of
from sa_doclock.core.session import context_of
from sa_doclock.core.transaction import Condition, Executor, SessionPart
from sa_doclock.core.transaction.session_part import SessionParts
from sa_doclock.dialects import FoundServer
from sa_doclock.dialects.base import LockStrategy
from sa_doclock.features import install
from sa_doclock.guard.write_guard import WriteGuard
from sa_doclock.sqlalchemy_internals import allow_listening, insert_listener, listen_first
from tests.docs.reference import ROLES
from tests.support.models import Base, Order
from tests.support.rows import rows


class Named(SessionPart):
    def __init__(self, name: str, called: list[str]) -> None:
        self._name, self._called = name, called

    def before_commit(self) -> None:
        self._called.append(self._name)


class Other(Named):
    def discard(self) -> None:
        self._called.append("after")


def test_each_of_several_parts_of_one_kind_is_called() -> None:
    called: list[str] = []
    parts, first = SessionParts(), Named("first", called)
    parts.add(first, Named("second", called), Other("third", called))
    for hook in (*parts.before_commit, *parts.discard):
        hook()
    assert called == ["first", "second", "third", "after"]
    parts.remove(first)
    assert len(parts.before_commit) == 2
    assert (first in parts.all, parts.ended) == (False, ())


class Interrupted(Named):
    def ended(self, *, committed: bool) -> None:
        super().before_commit()
        if self._name == "first":
            raise KeyboardInterrupt


def test_each_part_is_told_of_the_end_whatever_another_meets() -> None:
    called: list[str] = []
    session = LockingSession(create_engine("sqlite://"))
    parts = context_of(session).parts
    parts.add(Interrupted("first", called), Interrupted("second", called))
    session.begin()
    with pytest.raises(KeyboardInterrupt):
        session.rollback()
    assert called == ["first", "second"]


def test_the_guard_forgets_the_transaction_that_has_ended() -> None:
    session = LockingSession(create_engine("sqlite://"))
    guard = context_of(session).parts.guard
    assert isinstance(guard, WriteGuard)
    session.begin()
    known = guard.memory
    session.rollback()
    assert guard.memory is not known


class Executing:
    """Executes a replacement for each statement that may lock."""

    def executor(self, session: Session, statement: Any) -> Executor | None:
        return lambda run, _options, _binds: run(select(literal(2)))


def test_what_adopts_a_statement_executes_it() -> None:
    session = LockingSession(create_engine("sqlite://"), adopt_for_update=False)
    parts, statement = context_of(session).parts, select(literal(1)).with_for_update()
    assert parts.adoption is None
    assert session.scalar(statement) == 1
    parts.adoption = Executing()
    assert session.scalar(statement) == 2


def test_a_session_whose_parts_were_interrupted_makes_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = LockingSession(create_engine("sqlite://"))
    with monkeypatch.context() as patch:
        patch.setattr(install, "WriteGuard", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            session.begin()
    session.rollback()
    assert isinstance(context_of(session).parts.guard, WriteGuard)


# --------------------------------------------------------------------------------------------------
# The core needs no feature: a copy without features locks documents; LockingSession needs few.

PACKAGE = Path(sa_doclock.__file__).parent
#: The core, the databases, and the vocabulary that users import too.
CORE = (
    "core",
    "dialects",
    "caller.py",
    "checkout_info.py",
    "errors.py",
    "events.py",
    "first_use.py",
    "functions.py",
    "interruptions.py",
    "keys.py",
    "options.py",
    "pool",
    "sqlalchemy_internals.py",
    "wait_info.py",
)
#: The parts that most LockingSessions have: the family, named locks, and the refusal of ``checkout=``.
OF_EVERY_SESSION = (
    "__init__.py",
    "install.py",
    "named_locks.py",
)
FAMILY = ("adoption", "dml_internals.py", "guard", "kinds.py", "versions.py")
SESSION = ("session", *FAMILY, *(f"features/{name}" for name in OF_EVERY_SESSION))
SCRIPT = Path(__file__).with_name("core_alone_script.py")


@pytest.mark.parametrize(
    ("kept", "session"),
    [(CORE, "core.session.CoreSession"), ((*CORE, *SESSION), "session.LockingSession")],
    ids=["core", "session"],
)
def test_a_copy_without_features_and_tools_locks_documents(
    tmp_path: Path, kept: tuple[str, ...], session: str
) -> None:
    copy = tmp_path / "sa_doclock"
    (copy / "features").mkdir(parents=True)
    (copy / "__init__.py").touch()  # the public names, which import everything
    for name in kept:
        source = PACKAGE / name
        copied = shutil.copytree if source.is_dir() else shutil.copyfile
        copied(source, copy / name)
    script = shutil.copyfile(SCRIPT, tmp_path / SCRIPT.name)
    command = [sys.executable, str(script), session]
    run = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


def test_the_core_imports_no_feature() -> None:
    found = [
        f"{path.relative_to(PACKAGE).as_posix()}: {node.module}"
        for path in sorted((PACKAGE / "core").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and {"features", "guard", "adoption", "versions"} & {*(node.module or "").split(".")}
    ]
    assert found == []


# --------------------------------------------------------------------------------------------------
# The wide interfaces do not grow: a session's state, and the dialect of a database.

#: The objects of a dialect, by their names.
PARTS: dict[str, type] = {**ROLES, "compatible": FoundServer}
#: Objects with more than eight subjects.
MOST = {"statements": 9}


#: The state classes of a session with more than ten members, and the maximum for each.
STATE = {
    "LockContext": 15,
    "LockTransaction": 65,
    "TransactionConnections": 31,
    "TransactionConnection": 43,
    "Ledger": 37,
    "LoadedDocuments": 14,
    "DocumentIndex": 36,
}


def members(kind: type, *, private: bool) -> set[str]:
    """Return the names that a class and its bases have or declare, except Python's own."""
    names = {
        name
        for base in kind.__mro__[:-1]
        for name in (*vars(base), *vars(base).get("__annotations__", {}))
        if not name.startswith(("__", "_abc_"))
    }
    return {name for name in names if private or not name.startswith("_")}


def test_each_part_of_the_state_of_a_session_has_few_members(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/members.db")
    Base.metadata.create_all(engine)
    with LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        context = context_of(session)
        context.loaded.of(mapper_of(Order))
        context.transaction.note_half_done(LockMisuse("of a test"))
        context.transaction.refuse_from_now_on(LockMisuse("of a test"))
        found = dict(_members_within({}, context))
    assert found.keys() >= STATE.keys(), found.keys()
    more = {kind: names for kind, names in found.items() if len(names) > STATE.get(kind, 10)}
    assert not more, {kind: len(names) for kind, names in more.items()}


def attributes(one: object) -> dict[str, Any]:
    """Return the attributes of an object, from its dict or its slots."""
    slots = [name for name in getattr(one, "__slots__", ()) if name != "__weakref__"]
    return {name: getattr(one, name) for name in slots} | getattr(one, "__dict__", {})


def _members_within(seen: dict[int, Any], *objects: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield the core classes reachable from these objects, with their members."""
    for one in objects:
        kept = attributes(one) if type(one).__module__.startswith("sa_doclock.core") else {}
        if id(one) in seen or not kept:
            continue
        seen[id(one)] = one
        # Skips the moves of an Enum, and the hooks of the features.
        if not isinstance(one, (Condition, SessionParts)):
            yield type(one).__name__, members(type(one), private=True) | kept.keys()
        for value in kept.values():
            yield from _members_within(seen, *(value.values() if type(value) is dict else [value]))


def test_the_interface_of_a_dialect_has_few_members() -> None:
    found = members(LockStrategy, private=False)
    assert len(found) <= 35, sorted(found)


@rows("name", PARTS)
def test_each_object_of_a_dialect_has_one_subject(name: str) -> None:
    found = members(PARTS[name], private=False)
    assert len(found) <= MOST.get(name, 8), sorted(found)


def test_every_object_of_a_dialect_is_counted() -> None:
    kinds = get_type_hints(LockStrategy)
    objects = {name for name, kind in kinds.items() if _is_of_dialects(kind)}
    assert objects == PARTS.keys()


def _is_of_dialects(kind: Any) -> bool:
    return any(
        getattr(one, "__module__", "").startswith("sa_doclock.dialects")
        for one in (kind, *get_args(kind), *(o for a in get_args(kind) for o in get_args(a)))
    )


# --------------------------------------------------------------------------------------------------
# Our listeners on a dialect run before the program's, whenever and on whichever class it adds them.


def test_they_are_called_first() -> None:
    called: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: called.append(name)

    engine, of_class = create_engine("sqlite://"), note("of the class")
    event.listen(Engine, "handle_error", of_class)
    try:
        for name in ("handle_error", "do_execute_no_params"):
            event.listen(engine, name, note(f"{name} before"))
            allow_listening([engine.dialect], name)
        listen_first(engine.dialect, "handle_error", note("ours, of an error"))
        insert_listener(engine.dialect, "do_execute_no_params", note("ours"))
        event.listen(engine, "handle_error", note("handle_error later"))
        with engine.connect() as connection, suppress(OperationalError):
            options: Any = {"no_parameters": True}
            connection.execution_options(**options).exec_driver_sql("SELECT nothing")
    finally:
        event.remove(Engine, "handle_error", of_class)
    assert called == [
        *("ours", "do_execute_no_params before"),
        *("ours, of an error", "of the class", "handle_error before", "handle_error later"),
    ]
