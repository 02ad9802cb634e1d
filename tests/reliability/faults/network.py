"""Faults of a network."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from tests.reliability.faults.proxy import Link, Proxy

#: Seconds: short enough for a run, and longer than a statement takes.
STALL = 0.2


class Reset:
    name = "connections reset (RST)"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def inject(self, chance: random.Random) -> int:
        return int(self._proxy.harm(Link.reset, chance) is not None)

    def heal(self) -> int:
        return 0


class HalfOpen:
    """The client's end is reset, and the server's stays: it goes on waiting, with its locks."""

    name = "connections left half open"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._open: list[Link] = []

    def inject(self, chance: random.Random) -> int:
        self.heal()

        def leave_open(link: Link) -> None:
            link.flows.clear()
            link.reset(link.client)
            self._open.append(link)

        return int(self._proxy.harm(leave_open, chance) is not None)

    def heal(self) -> int:
        """Drop the connections in the end, as a router does which counts them."""
        while self._open:
            self._proxy.run_soon(self._open.pop().release)
        return 0


class Stalled:
    """Nothing comes through for a while; after that, everything does."""

    name = "connections stalled"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._waiting = threading.Event()

    def inject(self, chance: random.Random) -> int:
        link = self._proxy.harm(lambda link: link.flows.clear(), chance)
        self._waiting.wait(STALL)
        if link is not None:
            self._proxy.run_soon(link.flows.set)
        return int(link is not None)

    def heal(self) -> int:
        return 0


class CutInMidPacket:
    """Half of the next packet comes through, and then the end."""

    name = "connections cut in mid-packet"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._armed: list[Link] = []

    def inject(self, chance: random.Random) -> int:
        direction = chance.choice(("there", "back"))
        arm: Callable[[Link], object] = lambda link: setattr(link, "cut", direction)  # noqa: E731
        link = self._proxy.harm(arm, chance)
        if link is not None:
            self._armed.append(link)
        return self._happened()

    def heal(self) -> int:
        return self._happened()

    def _happened(self) -> int:
        done = [link for link in self._armed if link.was_cut]
        self._armed = [link for link in self._armed if link not in done]
        return len(done)
