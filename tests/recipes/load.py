"""Many concurrent calls, and processes that are killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.docs.programs import python_environment

WORKERS = 3
THREADS = 8
ROUNDS = 20


def at_once(calls: Iterable[Callable[[], Any]], *expected: type[Exception]) -> list[Any]:
    """Return the result of each call, in order, or the expected exception that it raised.

    All threads begin together, in a random order of the calls.

    :raises Exception: any other error of a call.
    """
    todo = list(calls)
    start = threading.Barrier(min(THREADS, len(todo)), timeout=30)
    waiting = iter(random.sample(range(len(todo)), len(todo)))
    lock = threading.Lock()
    answers: list[Any] = [None] * len(todo)

    def work() -> None:
        start.wait()
        while True:
            with lock:
                index = next(waiting, None)
            if index is None:
                return
            try:
                answers[index] = todo[index]()
            except expected as error:
                answers[index] = error

    with ThreadPoolExecutor(THREADS) as threads:
        for worker in [threads.submit(work) for _ in range(start.parties)]:
            worker.result()
    return answers


def breaks(load: Callable[[], object], *symptoms: type[Exception]) -> bool:
    """Return whether the load goes wrong in at least one of several rounds."""
    wrong: tuple[type[Exception], ...] = (AssertionError, *symptoms)
    for _ in range(ROUNDS):
        try:
            load()
        except wrong:  # noqa: PERF203
            return True
    return False


def without(*answers: type[Exception], of: Sequence[Any]) -> list[Any]:
    """Return the answers except these exceptions."""
    return [one for one in of if not isinstance(one, answers)]


def start(text: str, url: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a program, with this URL in place of the page's URL."""
    program = folder / "program.py"
    program.write_text(text.replace("sqlite:///shop.db", url), encoding="utf-8")
    return subprocess.Popen([sys.executable, program.name], cwd=folder, env=python_environment())


def run_until_one_ends(text: str, url: str, folder: Path) -> int:
    """Run workers that kill themselves until one finishes; return the number of dead workers."""
    died, ended = 0, False
    while not ended:
        workers = [start(text, url, folder) for _ in range(WORKERS)]
        codes = [worker.wait(60) for worker in workers]
        assert set(codes) <= {0, -signal.SIGKILL}
        died += codes.count(-signal.SIGKILL)
        ended = 0 in codes
    return died
