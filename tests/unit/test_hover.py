"""An editor shows the whole documentation of each method of a session, the asynchronous one too."""

from __future__ import annotations

import inspect
import re

import pytest

from sa_doclock import AsyncLockingSession, LockingSession
from tests.unit.language_server import serving

pytest.importorskip("basedpyright")
METHODS = sorted(
    {
        name
        for one in LockingSession.__mro__
        if one.__module__.startswith("sa_doclock")
        for name in vars(one)
    }
    & {name for name in vars(AsyncLockingSession) if not name.startswith("_")}
)
PROGRAM = "\n".join(
    [
        "from sa_doclock import AsyncLockingSession",
        "def program(session: AsyncLockingSession) -> None:",
        *(f"    session.{name}" for name in METHODS),
    ]
)
_NO_LETTER = re.compile(r"&nbsp;|[^a-zA-Z]")


def letters(text: str) -> str:
    """Return a text without what an editor lays it out by."""
    return _NO_LETTER.sub("", re.sub(r":\w+:`~?(?:\w+\.)*(\w+)", r"\1", text))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_editor_shows_whole_docstrings() -> None:
    assert "get_entity" in METHODS
    missing = {}
    with serving(PROGRAM) as server:
        for line, name in enumerate(METHODS, 2):
            documented = inspect.getdoc(inspect.getattr_static(LockingSession, name)) or ""
            shown = letters(server.hover(line, len("    session.")))
            last = letters(documented.rstrip().rpartition("\n")[2])
            first = letters(documented.partition("\n")[0])
            if first not in shown or last not in shown:
                missing[name] = shown
            if "AbstractAsyncContextManager" in shown and "asyncwith" not in shown:
                missing[name] = "async with"
    assert missing == {}


@pytest.mark.parametrize("name", METHODS)
def test_help_says_async_with_of_a_block(name: str) -> None:
    method = inspect.getattr_static(AsyncLockingSession, name)
    says = (inspect.getdoc(method) or "").partition("\n")[0]
    is_block = name.startswith("locked") or name == "unguarded"
    assert ("by ``async with``." in says) is is_block
    assert ("awaited." in says) is inspect.iscoroutinefunction(method)
