"""The functions that a test runs at once, and what becomes of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """The end of a function that ran in :func:`two_at_once`.

    :ivar value: what it has returned.
    :ivar error: what it has raised; None where it has returned.
    """

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


def check_function(name: str, function: Callable[[], Any]) -> Callable[[], Any]:
    """Return the function.

    :raises TypeError: it is none, or a call of it runs nothing.
    """
    if not callable(function):
        raise TypeError(f"{name} must be a function without arguments, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{name} is a generator function, a call of which runs nothing: {function!r}"
        )
    return function
