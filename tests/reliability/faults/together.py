"""All kinds at once."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.reliability.faults.chaos import Chaos


class Together:
    """One of the kinds each time, chosen at random."""

    name = "all of these at once, and SIGKILL to the server"

    def __init__(self, kinds: Sequence[Chaos]) -> None:
        self._kinds = kinds

    def inject(self, chance: random.Random) -> int:
        return chance.choice(self._kinds).inject(chance)

    def heal(self) -> int:
        return sum(kind.heal() for kind in self._kinds)
