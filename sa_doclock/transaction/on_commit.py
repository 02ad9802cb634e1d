"""Functions that are called after the commit, when the locks are released, or never."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

_log = logging.getLogger("sa_doclock")


class OnCommit:
    """The functions to call after the commit of one session's transaction."""

    def __init__(self) -> None:
        self._functions: list[Callable[[], object]] = []

    def add(self, function: Callable[[], object]) -> None:
        """Call it after the commit.  :raises TypeError: it cannot be called."""
        if not callable(function):
            raise TypeError(f"on_commit() needs a function without arguments, not {function!r}")
        self._functions.append(function)

    def mark(self) -> int:
        """Return how many there are now, for the rollback of a savepoint that is being set."""
        return len(self._functions)

    def roll_back_to(self, mark: int) -> None:
        """Drop those that were added since."""
        del self._functions[mark:]

    def clear(self) -> None:
        """Drop all of them."""
        self._functions.clear()

    def end(self, *, committed: bool) -> None:
        """Call the functions if the transaction was committed, and drop them.

        Its connections are back in the pool.
        """
        functions, self._functions = self._functions, []
        if committed:
            _call(functions)


def _call(functions: Sequence[Callable[[], object]]) -> None:
    first: Exception | None = None
    for function in functions:
        try:
            function()
        except Exception as error:  # noqa: BLE001, PERF203  # it must not stop the others
            if first is None:
                first = error  # raised when the others have had their turn
            else:
                _log.exception("on_commit: %r failed, after another had", function)
    if first is not None:
        raise first
