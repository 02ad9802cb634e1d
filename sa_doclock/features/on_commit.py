"""Functions of the program that run after the commit: ``session.on_commit()``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from weakref import ref

from ..core.transaction import EndOfTransaction, LockContext, SessionPart, next_moment
from ..functions import check_function, check_result

_log = logging.getLogger("sa_doclock")


class _Functions(EndOfTransaction):
    """The functions of one transaction, each with its place among the savepoints."""

    given: Sequence[tuple[int, Callable[[], object]]] = ()

    def ended(self, *, committed: bool) -> None:
        if committed:
            call_all([function for _, function in self.given])


class AfterCommit(SessionPart):
    """The functions that a session calls after its locks are released; a rollback drops them."""

    def __init__(self, state: LockContext) -> None:
        self._state: Callable[[], LockContext] = ref(state)  # type: ignore[assignment]

    def _of_transaction(self) -> _Functions:
        return self._state().transaction.memory(self, _Functions)

    def add(self, function: Callable[[], object]) -> None:
        """Call it after the commit, when the connections are back in the pool."""
        check_function(
            *("the argument of on_commit()", function, "without arguments"),
            arguments=0,
            instead="the on_commit() of an AsyncLockingSession",
        )
        functions = self._of_transaction()
        functions.given = (*functions.given, (next_moment(), function))

    def take_all(self) -> Sequence[Callable[[], object]]:
        """Remove the functions, and return them for their caller to call."""
        functions = self._of_transaction()
        taken, functions.given = functions.given, ()
        return [function for _, function in taken]

    def roll_back_to(self, moment: int) -> None:
        """Drop the functions added since."""
        functions = self._of_transaction()
        functions.given = [given for given in functions.given if given[0] < moment]


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
    _, raised = next((pair for pair in failed if not isinstance(pair[1], Exception)), failed[0])
    for function, other in failed:
        if other is not raised:
            _log.error("on_commit: %r failed, as another did", function, exc_info=other)
    raise raised
