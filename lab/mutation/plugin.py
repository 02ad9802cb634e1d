"""A pytest plugin that runs the tests once on the original, then on each mutant the tests that reach it.

pytest imports it before the package, and loads the package's modules with all mutants of the sample
inside. Each mutant runs in a separate process, forked from one that collected all tests and ran none:
so the mutant itself computes every value cached for a process or a mapped class. It ends at the first
failure. The tests that ``--pairwise`` selects run first; the others run only if these all pass: so
one run finds both scores.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, NoReturn

import pytest

from lab.mutation.points import SWITCHES, Switches, mutated, places

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = (
    "sa_doclock/core",
    "sa_doclock/guard",
    "sa_doclock/adoption",
)
SWITCHED: Final = Switches()

#: After these seconds a mutant hangs, and counts as caught.
LONGEST: Final = 900
_CAUGHT: Final = 1


class Sample:
    """Mutants of folders and files: a given number, drawn with a given seed."""

    def __init__(self, many: int, seed: int, of: Sequence[str] = FOLDERS) -> None:
        paths = [path for name in of for path in _files(ROOT / name)]
        all_places = [(path, place) for path in paths for place in range(places(path.read_text()))]
        self.of = len(all_places)
        self.drawn = random.Random(seed).sample(all_places, min(many, self.of))
        self.reported: dict[int, str] = {}

    def wanted(self, path: Path) -> dict[int, int]:
        """Return the switch numbers of a file's mutants, by place."""
        return {place: number for number, (one, place) in enumerate(self.drawn) if one == path}


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with its mutants inside."""

    sample: Sample

    def get_code(self, fullname: str) -> CodeType | None:
        path = Path(self.path)
        tree, reported = mutated(path.read_text(), self.sample.wanted(path))
        name = path.relative_to(ROOT).as_posix()
        self.sample.reported |= {number: f"{name}:{text}" for number, text in reported.items()}
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[SWITCHES] = SWITCHED
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that have mutants."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("sa_doclock."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec and spec.origin and self._sample.wanted(Path(spec.origin)):
            spec.loader = _Loader(fullname, spec.origin)
            spec.loader.sample = self._sample
        return spec


class Mutants:
    """Runs the tests, in place of pytest's own loop."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._failed = False
        self._end_at_failure = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure; in a mutant's process, exit."""
        self._failed |= report.failed
        if report.failed and self._end_at_failure:
            os._exit(_CAUGHT)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests on the original and note which mutants they reach; then run each mutant."""
        from lab.running.pairwise import select  # noqa: PLC0415
        from tests.plugins.matrix import is_own_logic  # noqa: PLC0415  # the package is imported here

        pairwise = set(select(session.items, is_own_logic))
        is_caught = self._fork_server(session.items)
        reached = self._run_original(session.items)
        caught = [0, 0]
        for number in range(len(self._sample.drawn)):
            items = reached.get(number, [])
            first = [item for item in items if item in pairwise]
            rest = [item for item in items if item not in pairwise]
            by_pairs = is_caught(number, first)
            by_all = by_pairs or is_caught(number, rest)
            caught[0] += by_pairs
            caught[1] += by_all
            how = "pairwise" if by_pairs else "all combinations" if by_all else "NOT CAUGHT"
            reported = self._sample.reported.get(number, "a module that no test imports")
            _say(f"{number + 1}. {how} ({len(first)} and {len(rest)} tests): {reported}")
        _say(
            f"{len(self._sample.drawn)} of {self._sample.of} mutants; a test reaches {len(reached)} of them. "
            f"Caught by all combinations ({len(session.items)} tests): {caught[1]}; "
            f"pairwise ({len(pairwise)} tests): {caught[0]}"
        )
        return True

    def _fork_server(
        self, items: list[pytest.Item]
    ) -> Callable[[int, Sequence[pytest.Item]], bool]:
        """Fork a process that runs no test itself; return a function that makes it run tests on a mutant."""
        ours, its = Pipe()
        places = {item: place for place, item in enumerate(items)}
        if os.fork() == 0:
            ours.close()
            self._serve(its, items)
        its.close()

        def is_caught(number: int, some: Sequence[pytest.Item]) -> bool:
            ours.send((number, [places[item] for item in some]))
            caught: bool = ours.recv()
            return caught

        return is_caught

    def _serve(self, requests: Connection, items: list[pytest.Item]) -> NoReturn:
        """Answer which mutants the tests catch, until the asking process ends."""
        try:
            while True:
                number, places = requests.recv()
                requests.send(self._is_caught(number, [items[place] for place in places]))
        finally:
            os._exit(0)

    def _run_original(self, items: list[pytest.Item]) -> dict[int, list[pytest.Item]]:
        from sa_doclock.core.documents.mapping import clear_mapper_caches  # noqa: PLC0415

        reached: dict[int, list[tuple[float, pytest.Item]]] = {}
        failed = 0
        for item, following in _with_next(items):
            clear_mapper_caches()  # otherwise only the first test would reach the code behind the caches
            SWITCHED.clear()
            self._failed = False
            start = time.perf_counter()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            failed += self._failed
            for number in () if self._failed else SWITCHED:
                reached.setdefault(number, []).append((time.perf_counter() - start, item))
        _say(
            f"{failed} of {len(items)} tests fail on the original with switches: they are not used"
        )
        return {
            number: [item for _, item in sorted(found, key=lambda one: (one[0], one[1].nodeid))]
            for number, found in reached.items()
        }

    def _is_caught(self, number: int, items: list[pytest.Item]) -> bool:
        """Return whether one of these tests fails on this mutant, in a separate process."""
        if not items:
            return False
        child = os.fork()
        if child == 0:
            self._play(number, items)
        deadline = time.monotonic() + LONGEST
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status != 0
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return True
            time.sleep(0.01)

    def _play(self, number: int, items: list[pytest.Item]) -> None:
        os.setpgid(0, 0)
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        items[0].config.pluginmanager.unregister(name="terminalreporter")
        SWITCHED.active = number
        self._end_at_failure = True
        try:
            for item, following in _with_next(items):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except BaseException:  # noqa: BLE001
            os._exit(_CAUGHT)
        os._exit(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; pytest reads them before it imports the package."""
    parser.addoption("--mutants", type=int, default=60, help="how many mutants are drawn")
    parser.addoption("--mutants-seed", type=int, default=1, help="the seed that draws them")
    parser.addoption(
        "--mutants-of",
        type=lambda text: text.split(","),
        default=FOLDERS,
        help="the folders and files that are changed, separated by commas",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Draw the mutants before the first conftest imports the package."""
    assert not any(name.partition(".")[0] == "sa_doclock" for name in sys.modules)
    known = early_config.known_args_namespace
    sample = Sample(known.mutants, known.mutants_seed, known.mutants_of)
    sys.meta_path.insert(0, _Finder(sample))
    early_config.pluginmanager.register(Mutants(sample))


def _with_next(items: list[pytest.Item]) -> Iterable[tuple[pytest.Item, Any]]:
    return zip(items, [*items[1:], None], strict=True)


def _say(text: str) -> None:
    os.write(2, f"\n{text}\n".encode())
