"""explore(): two functions in all orders of their statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..concurrent import check_function
from .explorer import Explorer, Progress
from .result import Exploration
from .scheduler import Function
from .search import Search


def explore(
    first: Function,
    second: Function,
    *,
    before: Function,
    invariant: Callable[..., Any],
    orders: int = 1000,
    order: str | None = None,
    reduce: bool = True,
    patience: float = 5.0,
    timeout: float = 60.0,
    progress: Progress | None = None,
) -> Exploration:
    """Run two functions again and again, each time with another order of their statements.

    All orders are run, less those that cannot differ from one that was run: two statements that have
    no table and row in common, or only read, have no order.  The server says who waits for a lock.
    So its real locks decide which orders there are.

    Each function is first called once alone, after ``before()``: an error of such a call is raised.
    Errors in a run, a deadlock or a typed error of this library, are outcomes of the functions, and
    no failures unless the invariant says so.

    :param first: a function or coroutine function without arguments, which opens its own session; so
        is ``second``.  Functions run in a thread each, coroutines in an event loop of their own.
    :param before: sets the data back before each run, and commits.
    :param invariant: raises AssertionError, or returns a false value that is not None, where the data
        are wrong after a run.  Where it takes two arguments, they are the two outcomes, each with
        ``value`` and ``error``.
    :param orders: run no more orders than these.
    :param order: run this order alone, the ``order`` of a failure.
    :param reduce: False: also run the orders that seem to be equal.  For programs whose statements
        use tables that they do not name, by a view, a function or a trigger.
    :param patience: seconds after which a function that does nothing in the database waits for the
        other one in this process, for a mutex or a connection.
    :param timeout: seconds after which a run that has not ended is an error.
    :param progress: is called with a line of text every five seconds; by default the line is written
        to the standard error.
    :raises TimeoutError: a run has not ended.
    :raises ValueError: ``order`` is not made of 1 and 2.
    """
    functions = check_function("first", first), check_function("second", second)
    if order is not None and not set(order) <= {"1", "2"}:
        raise ValueError(f'order must be as in "1221", not {order!r}')
    if orders < 1:
        raise ValueError(f"orders must be at least 1, not {orders!r}")
    explorer = Explorer(
        functions,
        before,
        invariant,
        patience=patience,
        timeout=timeout,
        every_step=not reduce,
        progress=progress,
    )
    with explorer.listening():
        explorer.run_alone()
        if order is None:
            explorer.run_all(orders, Search(reduce=reduce))
        else:
            explorer.run_one(order)
    return explorer.result()
