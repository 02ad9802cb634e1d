"""explore_finding(): two functions in all orders, and whether they are the ones of a finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..exploration import Exploration, explore
from .finding import AuditFinding
from .watching import audit


def explore_finding(
    finding: AuditFinding,
    first: Callable[[], Any],
    second: Callable[[], Any] | None = None,
    *,
    before: Callable[[], Any],
    invariant: Callable[..., Any],
    orders: int = 1000,
) -> Exploration:
    """Run the functions of a finding in all orders of their statements, as :func:`explore` does.

    An audit knows the lines of a finding, but no arguments for them.  So the functions are the
    caller's, and the exploration is audited: if it does not meet the finding again, at the same
    lines, it is about something else, and that is an error.

    :param finding: of an :func:`audit` of this program, unchanged since.  After the cure it is not
        met any more: then give the functions to :func:`explore`.
    :param first: a function or coroutine function without arguments, that executes the finding's lines.
    :param second: the other one; by default the first once more.
    :raises ValueError: the finding was not met.
    :raises TimeoutError: as :func:`explore` says of this and of the other parameters.
    """
    with audit() as again:
        explored = explore(
            first, second or first, before=before, invariant=invariant, orders=orders
        )
    if not any((one.code, one.sites) == (finding.code, finding.sites) for one in again.findings):
        raise ValueError(
            f"the functions do not execute the lines of this {finding.code}: "
            f"{', '.join(finding.sites)}"
        )
    return explored
