"""What is done when the locks are gone: functions that run after the commit, or never."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

_log = logging.getLogger("sa_doclock")


class OnCommit:
    """The functions that one session's transaction has promised to call."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []
        self._committed = False
        self.commits = 0  # of this session, so far

    @property
    def was_committed(self) -> bool:
        """Whether the transaction that is about to end was committed."""
        return self._committed

    def add(self, function: Callable[[], object]) -> None:
        """Call it after the commit.  :raises TypeError: it cannot be called."""
        if not callable(function):
            raise TypeError(f"on_commit() needs a function without arguments, not {function!r}")
        self._waiting.append(function)

    def mark(self) -> int:
        """How many there are now, for the rollback of a savepoint that is being set."""
        return len(self._waiting)

    def roll_back_to(self, mark: int) -> None:
        """Drop what was added since."""
        del self._waiting[mark:]

    def committed(self) -> None:
        """The database has committed; the transaction is about to end."""
        self._committed = True
        self.commits += 1

    def drop(self) -> None:
        """Call nothing: it did not happen."""
        self._waiting.clear()

    def ended(self) -> None:
        """The transaction is over, and its connections are back in the pool."""
        waiting, committed = self._waiting, self._committed
        self._waiting, self._committed = [], False
        if committed:
            _call(waiting)


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
