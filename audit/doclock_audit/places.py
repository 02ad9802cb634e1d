"""Places: the program's lines behind a statement, an assignment or a lock."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import currentframe
from os import sep
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, Final, NamedTuple

from sa_doclock.testing.instruments import frames, is_of_library, parent_of


class Place(NamedTuple):
    """A line of the program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_new_place = partial(tuple.__new__, Place)  # same as Place(), but in C

Places = tuple[Place, ...]
"""A place and its callers, the innermost first."""

NOWHERE: Final[Places] = (Place("<unknown>", 0),)

_DEPTH: Final = 3
#: names that Alembic looks for in a migration
_MIGRATION: Final = {"revision", "down_revision"}
_PACKAGES: Final = tuple(
    f"{folder}{sep}"
    for folder in {
        *(sysconfig.get_paths()[name] for name in ("purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)
"""The folders of installed packages."""

_INSTALLED: Final = (
    *_PACKAGES,
    # When a script such as pytest runs the program, its frame is the outermost one.
    *(f"{sysconfig.get_paths()[name]}{sep}" for name in ("stdlib", "platstdlib", "scripts")),
)
_OTHERS, _PROGRAM, _RUNNER = range(3)
#: pytest's functions that call a test or a fixture: frames outside them belong to neither
_RUNNERS: Final = tuple(
    f"{sep}_pytest{sep}{name}.py" for name in ("python", "fixtures", "unittest", "runner")
)
# Threads: each use is one atomic operation of a dict or a set; two threads find the same.
_kinds: dict[
    str | tuple[str, Any], int
] = {}  # by file; with the module, because any code may be "<string>"
_libraries: set[str] = set()  # files whose frames are skipped
_own_packages: list[str] = []
_listening: list[RanBy] = []


def places_of_program() -> Places:
    """Return the program lines now executing, in at most three functions."""
    found: list[Place] = []
    libraries = _libraries
    frame: Any = currentframe()
    greenlet = None
    while True:
        try:
            while frame.f_code.co_filename in libraries:  # most frames
                frame = frame.f_back
        except AttributeError:  # noqa: PERF203  # asyncio: the parent frame shows the awaiting coroutine
            greenlet = parent_of(greenlet)
            if greenlet is None:
                break
            frame = greenlet.gr_frame
        else:
            file = frame.f_code.co_filename
            kind = _kinds.get(file)
            if kind is None:
                kind = _kind_of(frame)
            if kind == _PROGRAM:
                found.append(_new_place((file, frame.f_lineno)))
            if kind == _RUNNER or len(found) == _DEPTH:
                break
            frame = frame.f_back
    return _noted(found, frames)


def waiting_places(thread: int, task: Any) -> Places:
    """Return the lines at which a thread or an asyncio task waits or works."""
    awaited = list(_awaited(task.get_coro())) if task is not None and not task.done() else []
    running = sys._current_frames().get(thread)  # noqa: SLF001  # documented, despite its name
    of_thread = [one for one, _ in walk_stack(running)] if running is not None else []
    every = reversed(awaited) if awaited else of_thread
    stack = [one for one in every if not one.f_code.co_filename.startswith("<")]
    called = [Place(one.f_code.co_filename, one.f_lineno) for one in _of_program(stack)]
    return _noted(called[:_DEPTH], lambda: stack)


def is_of_migration() -> bool:
    """Return whether an Alembic migration is running: nothing else runs beside it."""
    return any(
        frame.f_globals.keys() >= _MIGRATION
        or str(frame.f_globals.get("__name__", "")).startswith("alembic.")
        for frame in frames()
    )


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of the coroutines that it awaits; none while it runs."""
    while coroutine is not None:
        if getattr(coroutine, "cr_running", False):
            return
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def _noted(found: Sequence[Place], stack: Callable[[], Iterable[FrameType]]) -> Places:
    if not found:
        return NOWHERE
    for ran in _listening:
        ran.note(found[0], stack)
    return tuple(found)


def _of_program(stack: Iterable[FrameType]) -> Iterator[FrameType]:
    """Yield the program's frames, out to the running test or fixture."""
    for frame in stack:
        kind = _kind_of(frame)
        if kind == _RUNNER:
            return
        if kind == _PROGRAM:
            yield frame


def _kind_of(frame: FrameType) -> int:
    file = frame.f_code.co_filename
    key = (file, frame.f_globals.get("__name__")) if file.startswith("<") else file
    known = _kinds.get(key)
    if known is None:
        path = os.path.abspath(file)  # noqa: PTH100  # keep a link's own name
        installed = path.startswith(_INSTALLED) and not is_of_own_package(path)
        if path.endswith(_RUNNERS):
            known = _RUNNER
        elif installed or file.startswith("<frozen") or is_of_library(frame):
            known = _OTHERS
        else:
            known = _PROGRAM
        _kinds[key] = known
        if known == _OTHERS and isinstance(key, str):
            _libraries.add(key)
    return known


def files_of_program() -> frozenset[str]:
    """Return the program's executed files, and the files whose functions they import by name."""
    seen = {str(key) for key, kind in list(_kinds.items()) if kind == _PROGRAM}
    modules = {getattr(one, "__file__", None): one for one in list(sys.modules.values())}
    for module in filter(None, map(modules.get, list(seen))):
        names = {str(getattr(one, "__module__", "")) for one in list(vars(module).values())}
        seen |= {getattr(sys.modules.get(name), "__file__", None) or "" for name in names}
    return frozenset(
        file
        for file in seen
        if file.endswith(".py") and (not file.startswith(_INSTALLED) or is_of_own_package(file))
    )


def _forget_kinds() -> None:
    _kinds.clear()
    _libraries.clear()


def in_packages(file: str) -> str:
    """Return the path of an installed package's file below the packages' folder, or ""."""
    return next((file[len(one) :] for one in _PACKAGES if file.startswith(one)), "")


def is_of_own_package(file: str) -> bool:
    """Return whether a file belongs to an installed package of the program itself."""
    name = in_packages(file).partition(sep)[0]
    return name.removesuffix(".py") in _own_packages


def packages_in(root: Path) -> set[str]:
    """Return the packages whose source is in this project: their installed copies belong to the program."""
    folders = (path for base in (root, root / "src") for path in base.glob("*/__init__.py"))
    return {path.parent.name for path in folders} - _FOLDERS_OF_TESTS


_FOLDERS_OF_TESTS: Final = frozenset({"test", "tests", "testing"})


def is_of_tests(path: str) -> bool:
    """Return whether a file contains tests, by its path in the project."""
    *folders, name = Path(path).parts or ("",)
    stem = name.removesuffix(".py")
    return (
        not _FOLDERS_OF_TESTS.isdisjoint(folders)
        or stem == "conftest"
        or stem.startswith("test_")
        or stem.endswith("_test")
    )


_MOST_TESTS: Final = 20  # for each line


class RanBy:
    """The tests that ran a line of the program, each with the calling lines.

    It remembers the first 20 tests of each line.
    """

    def __init__(self) -> None:
        self._tests: dict[Place, dict[str, tuple[str, ...]]] = {}

    @contextmanager
    def listening(self, packages: Collection[str]) -> Iterator[None]:
        """Listen in the block, and treat these packages as part of the program."""
        _own_packages.extend(packages)
        _forget_kinds()
        _listening.append(self)
        try:
            yield
        finally:
            _listening.remove(self)
            for one in packages:
                _own_packages.remove(one)
            _forget_kinds()

    def note(self, place: Place, stack: Callable[[], Iterable[FrameType]]) -> None:
        """Note that this line runs.

        :param stack: the calling frames, the innermost first.
        """
        tests = self._tests.get(place)
        if tests is None:
            tests = self._tests[place] = {}
        if len(tests) < _MOST_TESTS and (test := _current_test()) not in tests:
            tests[test] = _callers(place, stack())

    def tests_of(self, sites: Collection[str]) -> list[str]:
        """Return the node ids of the tests that ran all of these lines."""
        each = [known for known in map(self._of, sites) if known]
        common = [test for test in (each[-1] if each else ()) if all(test in one for one in each)]
        return [test for test in common or (each[-1] if each else ()) if test]

    def callers_of(self, site: str, tests: Collection[str]) -> tuple[str, ...]:
        """Return the lines that called this one, preferably in one of these tests."""
        known = self._of(site)
        chains = [known[test] for test in (*tests, *known) if test in known]
        return next(filter(None, chains), ())

    def _of(self, site: str) -> dict[str, tuple[str, ...]]:
        file, _, line = site.rpartition(":")
        return self._tests.get(Place(file, int(line)), {})

    def export(self) -> list[Any]:
        """Return all data, for ``merge()`` in another process."""
        return [[*place, tests] for place, tests in self._tests.items()]

    def merge(self, exported: list[Any]) -> None:
        """Add the data of another process."""
        for file, line, tests in exported:
            mine = self._tests.setdefault(Place(file, line), {})
            for test, callers in tests.items():
                if len(mine) < _MOST_TESTS:
                    mine.setdefault(test, tuple(callers))


def _current_test() -> str:
    """Return the node id of the test that pytest is running in this process, or ""."""
    if "pytest" not in sys.modules:  # the parent process may have set the variable
        return ""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


_MOST_CALLERS: Final = 3


def _callers(place: Place, stack: Iterable[FrameType]) -> tuple[str, ...]:
    by_file: dict[str, Place] = {}
    for frame in _of_program(stack):
        file = frame.f_code.co_filename
        if not file.startswith("<"):  # for example a pytest-xdist worker
            by_file.setdefault(file, Place(file, frame.f_lineno))
        if len(by_file) > _MOST_CALLERS:
            break
    by_file.pop(place.file, None)
    return tuple(map(str, by_file.values()))
