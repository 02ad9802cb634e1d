"""The mutex of the gates' queues, which a garbage collection may ask for in the thread that has it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Mutex:
    """A mutex for one thread at a time; what a finalizer asks for in its midst comes at its end.

    A garbage collection may come at any allocation, also under the mutex, and close what a dead task
    has left.  With a Lock it would wait for its own thread for ever; with an RLock alone it would change what
    that thread is about to change.

    It calls functions, and is no block: an interruption may come in front of the first line of an
    ``__exit__()`` in Python, and the mutex would stay with its thread.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._busy = False  # before it is set, and after, nothing is half done
        self._later: deque[Callable[[], object]] = deque()

    def call(self, function: Callable[[], T]) -> T:
        """Call the function under the mutex, and return what it returns."""
        with self._lock:
            self._busy = True
            try:
                while self._later:
                    self._later.popleft()()
                return function()
            finally:
                try:
                    while self._later:
                        self._later.popleft()()
                finally:
                    self._busy = False

    def run(self, function: Callable[[], object]) -> None:
        """Call the function under the mutex, also in a finalizer.

        It is called at the end of the function that a garbage collection interrupts; of one that ends
        right then, at the beginning of the next.
        """
        with self._lock:
            if self._busy:
                self._later.append(function)
            else:
                self.call(function)
