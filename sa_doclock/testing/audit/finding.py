"""One thing that an audit has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning"]

CODES: Final[Mapping[str, str]] = {
    "lost-update": "A row is read without a lock, and written with what was computed from it",
    "detail-without-header": "A detail is written without the lock of its header, which others take",
    "lock-order-cycle": "Transactions lock the same rows or tables in different orders",
    "lock-without-effect": "A lock is asked for, and the SQL that is sent does not lock",
    "stale-after-lock": "A row is locked, and its object keeps the values from before the lock",
    "long-hold": "A lock is held while no statement runs",
}
"""The codes of all findings, in the order of the report, each with its sentence."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A place of the program that needs a lock, or uses one wrongly.

    :ivar code: ``"lost-update"``, ``"detail-without-header"``, ``"lock-order-cycle"``,
        ``"lock-without-effect"``, ``"stale-after-lock"`` or ``"long-hold"``.
    :ivar severity: ``"error"``, or ``"warning"`` for what is only possible, and for ``long-hold``.
    :ivar certain: True if two transactions at once give a wrong result, or a deadlock; False if that
        depends on what the program means, which its statements do not tell.
    :ivar message: one sentence with the classes, columns and places.
    :ivar sites: the places of the program, each ``file:line``, in the order of the message.
    :ivar cure: the change, with its line of code.
    :ivar count: how often it was seen.
    """

    code: str
    severity: Severity
    certain: bool
    message: str
    sites: tuple[str, ...]
    cure: str
    count: int

    @property
    def possible(self) -> bool:
        """The opposite of ``certain``."""
        return not self.certain

    def __str__(self) -> str:
        return f"{self.severity} {self.code}: {self.message}"
