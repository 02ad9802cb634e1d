"""Callers that all begin at the same moment, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.support.actors import PATIENCE

T = TypeVar("T")


def all_at_once(number: int, call: Callable[[], T]) -> list[T]:
    """Return what each call has returned; raise the first error."""
    start = threading.Barrier(number)

    def begin() -> T:
        start.wait(PATIENCE)
        return call()

    with ThreadPoolExecutor(number) as threads:
        calls = [threads.submit(begin) for _ in range(number)]
        return [one.result(PATIENCE) for one in calls]
