"""Places: the lines of the program that a statement, an assignment or a lock comes from."""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import lru_cache
from os import sep
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from ...caller import frames, is_of_library


class Place(NamedTuple):
    """A line of the program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


Places = tuple[Place, ...]
"""A place, and those that have called it: the innermost first."""

NOWHERE: Final[Places] = (Place("<unknown>", 0),)

_DEPTH: Final = 3
#: The names that Alembic looks for in a migration.
_MIGRATION: Final = {"revision", "down_revision"}
_INSTALLED: Final = tuple(
    f"{folder}{sep}"
    for folder in {
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)
# Threads: each use is one operation of a dict, which is atomic; two threads find the same.
_is_program: dict[str, bool] = {}  # by file


def places_of_program() -> Places:
    """Return the lines of the program that are being executed, of at most three functions."""
    return _places_in(frames())


def waiting_places(thread: int, task: Any) -> Places:
    """Return the lines under which a thread, or a task of asyncio, waits or works."""
    awaited = list(_awaited(task.get_coro())) if task is not None and not task.done() else []
    stack = reversed(awaited) if awaited else _frames_of(thread)
    return _places_in(one for one in stack if not one.f_code.co_filename.startswith("<"))


def is_of_migration() -> bool:
    """Return whether a migration of Alembic is being executed, which runs alone."""
    return any(
        frame.f_globals.keys() >= _MIGRATION
        or str(frame.f_globals.get("__name__", "")).startswith("alembic.")
        for frame in frames()
    )


_FOLDERS_OF_TESTS: Final = frozenset({"test", "tests", "testing"})


# Threads: the cache is of names, which have one answer.
@lru_cache(maxsize=4096)
def is_of_tests(path: str) -> bool:
    """Return whether a file, by its path in the project, is one of tests."""
    *folders, name = Path(path).parts or ("",)
    stem = name.removesuffix(".py")
    return (
        not _FOLDERS_OF_TESTS.isdisjoint(folders)
        or stem == "conftest"
        or stem.startswith("test_")
        or stem.endswith("_test")
    )


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of those that it awaits; none where it runs."""
    while coroutine is not None:
        if getattr(coroutine, "cr_running", False):
            return
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def _frames_of(thread: int) -> Iterator[FrameType]:
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # documented, in spite of its name
    while frame is not None:
        yield frame
        frame = frame.f_back


def _places_in(stack: Iterable[FrameType]) -> Places:
    found: list[Place] = []
    for frame in stack:
        known = _is_program.get(frame.f_code.co_filename)
        if known or (known is None and _is_of_program(frame)):
            found.append(Place(frame.f_code.co_filename, frame.f_lineno))
            if len(found) == _DEPTH:
                break
    return tuple(found) or NOWHERE


def _is_of_program(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    known = _is_program.get(file)
    if known is None:
        known = not (file.startswith((*_INSTALLED, "<frozen")) or is_of_library(frame))
        if not file.startswith("<"):  # "<string>" is anybody's
            _is_program[file] = known
    return known
