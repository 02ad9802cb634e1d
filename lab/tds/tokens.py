"""The tokens of an answer ("Packet Data Token Stream", [MS-TDS] 2.2.7)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag

COLLATION = bytes.fromhex("0904d00034")  # SQL_Latin1_General_CP1_CI_AS
_VERSION = b"\x74\x00\x00\x04"  # TDS 7.4
_PRODUCT, _RELEASE = "Microsoft SQL Server", bytes((16, 0, 0x10, 0x27))
_INT, _NVARCHAR = 0x26, 0xE7
_NULL_STRING, _LONGEST = 0xFFFF, 8000

Value = int | str | None


class Change(IntEnum):
    """A change of the session that the server reports to the driver."""

    DATABASE = 1
    PACKET_SIZE = 4
    COLLATION = 7
    BEGUN = 8
    COMMITTED = 9
    ROLLED_BACK = 10


class Done(IntEnum):
    """The thing that ended: a statement of a batch, a procedure, a statement in a procedure."""

    STATEMENT = 0xFD
    PROCEDURE = 0xFE
    IN_PROCEDURE = 0xFF


class Status(IntFlag):
    FINAL = 0
    MORE = 1
    ERROR = 2
    COUNT = 0x10
    ATTENTION = 0x20


class Command(IntEnum):
    """The kind of statement; the specification leaves the numbers to the server."""

    SET = 0xBE
    SELECT = 0xC1
    INSERT = 0xC3
    UPDATE = 0xC5


def done(what: Done, status: Status, count: int = 0, command: Command = Command.SELECT) -> bytes:
    return struct.pack("<BHHQ", what, status, command, count)


def login_acknowledged() -> bytes:
    return _with_length(0xAD, b"\x01" + _VERSION + _short(_PRODUCT) + _RELEASE)


def changed(what: Change, new: bytes = b"\0", old: bytes = b"\0") -> bytes:
    return _with_length(0xE3, bytes((what,)) + new + old)


def text_changed(what: Change, new: str, old: str = "") -> bytes:
    return changed(what, _short(new), _short(old))


def of_bytes(value: bytes) -> bytes:
    return bytes((len(value),)) + value


def error(number: int, text: str, severity: int = 16) -> bytes:
    body = struct.pack("<iBB", number, 1, severity) + _long(text) + _short("tests") + _short("")
    return _with_length(0xAA, body + struct.pack("<i", 1))


def columns(names: Sequence[str], row: Sequence[Value]) -> bytes:
    """Describe the columns: names and types, which come from one row."""
    found = struct.pack("<BH", 0x81, len(names))
    for name, value in zip(names, row, strict=True):
        found += struct.pack("<IH", 0, 1) + _type(value) + _short(name)
    return found


def one_row(values: Sequence[Value]) -> bytes:
    return b"\xd1" + b"".join(map(_value, values))


def return_status(value: int) -> bytes:
    return struct.pack("<Bi", 0x79, value)


def output_parameter(name: str, value: int) -> bytes:
    head = struct.pack("<BH", 0xAC, 0) + _short(name) + struct.pack("<BIH", 1, 0, 1)
    return head + _type(value) + _value(value)


def _type(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<BH", _NVARCHAR, _LONGEST) + COLLATION
    return bytes((_INT, 4))


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        data = value.encode("utf-16-le")
        return struct.pack("<H", len(data)) + data
    return b"\0" if value is None else struct.pack("<Bi", 4, value)


def _with_length(token: int, body: bytes) -> bytes:
    return struct.pack("<BH", token, len(body)) + body


def _short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode("utf-16-le")


def _long(text: str) -> bytes:
    return struct.pack("<H", len(text)) + text.encode("utf-16-le")
