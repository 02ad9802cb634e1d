"""A wire that breaks in the midst of what is sent over it."""

from __future__ import annotations

import socket
from contextlib import suppress

from tests.integration.timeouts.wire import Wire


class CuttingWire(Wire):
    """Lets the first part of one message through, and nothing more of its connection."""

    def __init__(self, host: str, port: int) -> None:
        """Break nothing yet."""
        self._cut: tuple[str, float] | None = None
        self._messages = 0
        super().__init__(host, port)

    def break_next(self, direction: str, share: float, nth: int = 1) -> None:
        """Break the connection over which a message in this direction comes.

        :param direction: "there" or "back".
        :param share: of the bytes of this message, those that still arrive.
        :param nth: which one, counted from now on.
        """
        self._messages = nth
        self._cut = direction, share

    @property
    def broken(self) -> bool:
        """Return whether that has come to pass."""
        return self._cut is None

    def _pass_on(self, one: socket.socket, other: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                cut = self._cut
                if cut is not None and cut[0] == direction:
                    self._messages -= 1
                if cut is not None and cut[0] == direction and not self._messages:
                    self._cut = None
                    other.sendall(data[: int(len(data) * cut[1])])
                    break
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
