"""Functions to be called after a commit that write down that they were called."""

from __future__ import annotations

from collections.abc import Callable


class Promises:
    """The functions that were called, in order."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def note(self, name: str = "called") -> Callable[[], None]:
        """Make a function that writes this name down."""

        def function() -> None:
            self.kept.append(name)

        return function

    def fail(self, error: BaseException) -> Callable[[], None]:
        """Make a function that fails like this."""

        def failing() -> None:
            self.kept.append(str(error))
            raise error

        return failing
