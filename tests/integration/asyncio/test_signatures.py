"""AsyncLockingSession has the methods of LockingSession, with the same arguments, awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_doclock import AsyncLockingSession, LockingSession
from tests.support.rows import rows

SYNC_THERE_TOO = {"entity_set", "held_locks", "on_commit"}
BLOCKS = {
    "locked": (object, 1),
    "locked_document": (object, 1),
    "locked_documents": (object, [1]),
    "unguarded": (),
}


def _own(kind: type[Any], base: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - set(dir(base))


METHODS = sorted(_own(LockingSession, Session))


def test_the_names_are_the_same() -> None:
    assert _own(AsyncLockingSession, AsyncSession) == set(METHODS)


def _member(kind: type[Any], name: str) -> Any:
    return inspect.getattr_static(kind, name)


@rows("name", METHODS)
def test_the_arguments_are_the_same(name: str) -> None:
    ours, theirs = _member(AsyncLockingSession, name), _member(LockingSession, name)
    assert isinstance(ours, property) is isinstance(theirs, property)
    if isinstance(ours, property):
        ours, theirs = ours.fget, theirs.fget
    ours, theirs = inspect.signature(ours), inspect.signature(theirs)
    if name == "on_commit":  # whose function may be a coroutine function there
        assert ours.parameters.keys() == theirs.parameters.keys()
        return
    assert ours.parameters == theirs.parameters
    if name not in BLOCKS:
        assert ours.return_annotation == theirs.return_annotation


@rows("name", METHODS)
def test_it_is_awaited_unless_it_only_makes_a_statement(name: str) -> None:
    member = _member(AsyncLockingSession, name)
    if name in BLOCKS:
        block = getattr(AsyncLockingSession(), name)(*BLOCKS[name])
        assert isinstance(block, AbstractAsyncContextManager)
    else:
        assert inspect.iscoroutinefunction(member) is (name not in SYNC_THERE_TOO)


@rows("name", METHODS)
def test_it_is_documented_and_leads_to_the_synchronous_one(name: str) -> None:
    reported = inspect.getdoc(_member(AsyncLockingSession, name)) or ""
    documented = inspect.getdoc(_member(LockingSession, name))
    assert f"LockingSession.{name}" in reported
    assert documented
    paragraphs = [one for one in documented.split("\n\n") if not one.startswith("    ")]  # no code
    assert not [one for one in paragraphs if one not in reported]


def test_a_subclass_of_the_synchronous_session_is_asked() -> None:
    class Own(LockingSession):
        def get_entities(self, *args: Any, **kwargs: Any) -> list[Any]:
            return [args, kwargs]

        @contextmanager
        def unguarded(self) -> Iterator[None]:
            self.info["unguarded"] = True
            yield

    class AsyncOwn(AsyncLockingSession):
        sync_session_class = Own

    async def call() -> list[Any]:
        async with AsyncOwn() as session, session.unguarded():
            return [*await session.get_entities(object, [1]), session.sync_session.info]

    assert asyncio.run(call()) == [(object, [1]), {}, {"unguarded": True}]
