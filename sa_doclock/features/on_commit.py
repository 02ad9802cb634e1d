"""Functions of the program that run after the commit: ``session.on_commit()``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ..core.transaction import LockContext, SessionPart, next_moment
from ..functions import check_function, check_result

_log = logging.getLogger("sa_doclock")


class AfterCommit(SessionPart):
    """The functions that a session calls when its locks are gone; a rollback drops them."""

    def __init__(self, state: LockContext) -> None:
        self._session = state.session
        self._functions: Sequence[tuple[int, Callable[[], object]]] = ()
        """The functions, each with the moment at which it came."""

    def add(self, function: Callable[[], object]) -> None:
        """Call it after the commit, when the connections are back in the pool."""
        check_function(
            *("the argument of on_commit()", function, "without arguments"),
            arguments=0,
            instead="the on_commit() of an AsyncLockingSession",
        )
        self._functions = (*self._functions, (next_moment(), function))

    def take_all(self) -> Sequence[Callable[[], object]]:
        """Remove the functions, and return them: their caller calls them."""
        taken, self._functions = self._functions, ()
        return [function for _, function in taken]

    def roll_back_to(self, moment: int) -> None:
        """Drop the functions that came since."""
        self._functions = [one for one in self._functions if one[0] < moment]

    def ended(self, *, committed: bool) -> None:
        """Call the functions, or drop them."""
        functions = self.take_all()
        if committed:
            call_all(functions)

    def forget(self) -> None:
        """Drop the functions where no transaction had begun, so that none ends."""
        if not self._session().in_transaction():
            self._functions = ()


def call_all(functions: Sequence[Callable[[], object]]) -> None:
    """Call all of them; then raise the first interruption, or else the first error."""
    failed: list[tuple[Callable[[], object], BaseException]] = []
    for function in functions:
        try:
            check_result("the argument of on_commit()", function, function())
        except BaseException as error:  # noqa: BLE001, PERF203  # it must not stop the others
            failed.append((function, error))
    if not failed:
        return
    _, raised = next((one for one in failed if not isinstance(one[1], Exception)), failed[0])
    for function, other in failed:
        if other is not raised:
            _log.error("on_commit: %r failed, as another did", function, exc_info=other)
    raise raised
