"""The beginning of a connection: without encryption, for any user."""

from __future__ import annotations

import struct

from tests.sql.tds import tokens
from tests.sql.tds.tokens import Change, Done, Status

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
    """Answer what pyodbc asks when it connects; without an answer it goes by itself."""
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
