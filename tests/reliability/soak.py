"""The length of a test: seconds in ``make test``, as long as ``make soak`` says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


def _say_nothing(_: str) -> None:
    pass


@dataclass(frozen=True)
class Soak:
    """The source of every length.

    :ivar seconds: for each server, of all that is done to it; 0 is the short form.
    """

    seconds: float = 0
    say: Callable[[str], None] = field(default=_say_nothing, repr=False)

    @property
    def long(self) -> bool:
        """Return whether this is ``make soak``."""
        return self.seconds > 0

    def times(self, *, short: int, long: int) -> int:
        """Return how often something is to be done, which takes as long as it takes."""
        return long if self.long else short

    def rounds(self, *, short: int, share: float = 1.0) -> Iterator[int]:
        """Count from 0: ``short`` rounds, or in the long form for this share of the seconds.

        The short form does not look at the clock; the long one goes ``short`` rounds at least.
        """
        number = 0
        end = time.monotonic() + self.seconds * share
        while number < short or (self.long and time.monotonic() < end):
            yield number
            number += 1

    def progress(self, text: str) -> None:
        """Say where the test is, past pytest's capture; nothing in the short form."""
        if self.long:
            self.say(text)
