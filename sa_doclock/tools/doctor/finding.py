"""Finding: a setting of a database, or of its engine, that makes locks wrong, endless or slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "info"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
"""The severities, the worst first."""

PAGE: Final = "https://github.com/sa-doclock/sa-doclock/blob/main/docs/doctor.md"


@dataclass(frozen=True)
class Finding:
    """One thing that :func:`check_database` has found.

    :ivar severity: ``"error"``: locks fail, or do not protect; ``"warning"``: they do, until
        something goes wrong; ``"info"``: good to know.
    :ivar code: the name of the check, which stays the same from release to release.
    :ivar text: what was found, with its value.
    :ivar cure: what to do; SQL can be pasted as it is.
    """

    severity: Severity
    code: str
    text: str
    cure: str

    @property
    def link(self) -> str:
        """The address of the page's section about this check."""
        return f"{PAGE}#{self.code}"

    def __str__(self) -> str:
        """Return it as lines for people."""
        return f"{self.severity}: {self.text} [{self.code}]\n{self.cure}"
