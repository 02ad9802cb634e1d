"""The outcome of a function that a test runs at the same time as another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """The end of a function that ran in :func:`two_at_once`.

    :ivar value: its return value.
    :ivar error: its exception; None if it returned.
    """

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value
