"""Messages of TDS, which travel in packets of 4 kB ("Packets", [MS-TDS] 2.2.3)."""

from __future__ import annotations

import socket
import struct
from enum import IntEnum
from typing import NamedTuple

_HEADER = struct.Struct(">BBHHBB")  # type, status, length, process, number, window
_LAST, _BODY = 1, 4096 - _HEADER.size


class Kind(IntEnum):
    """The type of a message."""

    BATCH = 1
    RPC = 3
    ANSWER = 4
    ATTENTION = 6
    TRANSACTION = 14
    LOGIN = 16
    PRELOGIN = 18


class Message(NamedTuple):
    """A whole message, out of all its packets."""

    kind: Kind
    body: bytes


def receive(peer: socket.socket) -> Message | None:
    """Return the next message; None when the client has gone."""
    body = b""
    while True:
        if (header := _exactly(peer, _HEADER.size)) is None:
            return None
        kind, status, length, *_ = _HEADER.unpack(header)
        if (part := _exactly(peer, length - _HEADER.size)) is None:
            return None
        body += part
        if status & _LAST:
            return Message(Kind(kind), body)


def send(peer: socket.socket, body: bytes) -> None:
    """Send an answer, in as many packets as it takes."""
    parts = [body[at : at + _BODY] for at in range(0, len(body), _BODY)]
    for number, part in enumerate(parts, 1):
        last = _LAST if number == len(parts) else 0
        length = _HEADER.size + len(part)
        peer.sendall(_HEADER.pack(Kind.ANSWER, last, length, 0, number % 256, 0) + part)


def _exactly(peer: socket.socket, length: int) -> bytes | None:
    got = b""
    while len(got) < length:
        try:
            part = peer.recv(length - len(got))
        except OSError:
            return None
        if not part:
            return None
        got += part
    return got
