"""Messages of TDS, which travel in packets of 4 kB ("Packets", [MS-TDS] 2.2.3)."""

from __future__ import annotations

import socket
import struct
from enum import IntEnum
from typing import NamedTuple

from lab.tds import tokens
from lab.tds.tokens import Change, Done, Status

_HEADER = struct.Struct(">BBHHBB")  # type, status, length, process, number, window
_LAST, _BODY = 1, 4096 - _HEADER.size


class Kind(IntEnum):
    BATCH = 1
    RPC = 3
    ANSWER = 4
    ATTENTION = 6
    TRANSACTION = 14
    LOGIN = 16
    PRELOGIN = 18


class Message(NamedTuple):
    """A whole message, assembled from its packets."""

    kind: Kind
    body: bytes


def receive(peer: socket.socket) -> Message | None:
    """Return the next message; None if the client disconnected."""
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
    """Send an answer, in as many packets as it needs."""
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


# --------------------------------------------------------------------------------------------------
# The start of a connection: no encryption, any user.

TYPES = "sp_datatype_info"
#: Version, encryption: not supported, instance, thread, no MARS ("PRELOGIN", 2.2.6.5).
_PRELOGIN = ((0, bytes((16, 0, 0x10, 0x27, 0, 0))), (1, b"\x02"), (2, b"\0"), (3, b""), (4, b"\0"))


def prelogin() -> bytes:
    head, data = b"", b""
    start = 5 * len(_PRELOGIN) + 1
    for option, value in _PRELOGIN:
        head += struct.pack(">BHH", option, start + len(data), len(value))
        data += value
    return head + b"\xff" + data


def no_types(*, more: bool) -> bytes:
    """Answer pyodbc's questions at connect; it disconnects without an answer."""
    found = tokens.columns(["TYPE_NAME", "DATA_TYPE", "PRECISION"], ["datetime2", 93, 27])
    found += tokens.done(Done.IN_PROCEDURE, Status.MORE | Status.COUNT, 0)
    return found + tokens.done(Done.PROCEDURE, Status.MORE if more else Status.FINAL)


def login() -> bytes:
    return b"".join(
        (
            tokens.text_changed(Change.DATABASE, "shop", "master"),
            tokens.changed(Change.COLLATION, new=tokens.of_bytes(tokens.COLLATION)),
            tokens.login_acknowledged(),
            tokens.text_changed(Change.PACKET_SIZE, "4096", "4096"),
            tokens.done(Done.STATEMENT, Status.FINAL),
        )
    )
