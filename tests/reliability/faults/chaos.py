"""The interface of every kind of fault."""

from __future__ import annotations

import random
from typing import Protocol


class Chaos(Protocol):
    """One kind of fault.

    :ivar name: in the past, for the table.
    """

    name: str

    def inject(self, chance: random.Random) -> int:
        """Inject it, once; return how often it has really happened."""

    def heal(self) -> int:
        """Let nothing of it go on; return what has happened since, and was not counted yet."""
