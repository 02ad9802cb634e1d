"""The mutex of the gates' queues, which a garbage collection may ask for in the thread that has it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Mutex:
    """A mutex for one thread at a time; what a finalizer asks for in its midst comes at its end.

    A garbage collection may come at any allocation, also under the mutex, and close what a dead task
    has left.  With a Lock it would wait for its own thread for ever; with an RLock alone it would change what
    that thread is about to change.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._busy = False  # before it is set, and after, nothing is half done
        self._later: deque[Callable[[], object]] = deque()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Return the block of the thread that has it."""
        with self._lock:
            self._busy = True
            try:
                if self._later:
                    self._run_later()
                yield
            finally:
                if self._later:
                    self._run_later()
                self._busy = False

    def run(self, function: Callable[[], object]) -> None:
        """Run the function under the mutex, also in a finalizer.

        It runs at the end of the block that a garbage collection interrupts; of one that ends right then,
        at the beginning of the next.
        """
        with self._lock:
            if self._busy:
                self._later.append(function)
                return
            with self.held():
                function()

    def _run_later(self) -> None:
        while self._later:
            self._later.popleft()()
