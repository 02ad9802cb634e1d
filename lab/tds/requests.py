"""The requests of a driver, parsed from its messages ([MS-TDS] 2.2.6)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: "RPC Request", 2.2.6.6: the procedures with a number.
_PROCEDURES = {10: "sp_executesql", 11: "sp_prepare", 12: "sp_execute"}
_PROCEDURES |= {13: "sp_prepexec", 14: "sp_prepexecrpc", 15: "sp_unprepare"}
_TM = {5: "begin", 7: "commit", 8: "rollback", 9: "save"}

_FIXED = {0x30: "<B", 0x32: "<B", 0x34: "<h", 0x38: "<i", 0x7F: "<q", 0x3E: "<d", 0x3D: "<q"}
_SIZED = frozenset({0x26, 0x68, 0x6D, 0x6E, 0x6F, 0x24})
_DECIMALS = frozenset({0x6A, 0x6C})
_TIMES = frozenset({0x29, 0x2A, 0x2B})  # with the digits of a second
_DATE = 0x28
_BINARY, _ANSI, _WIDE = frozenset({0xA5, 0xAD}), frozenset({0xA7, 0xAF}), frozenset({0xE7, 0xEF})
_TEXT, _NTEXT = 0x23, 0x63
_IN_PARTS, _NONE = 0xFFFF, 0xFFFF


class Call(NamedTuple):
    """A call of a procedure by a driver, with its texts and values."""

    procedure: str
    arguments: list[object]


class TransactionRequest(NamedTuple):
    """A request to the transaction manager."""

    verb: str
    begins_next: bool


@dataclass
class _Reader:
    data: bytes
    at: int = 0

    def take(self, length: int) -> bytes:
        found = self.data[self.at : self.at + length]
        self.at += length
        return found

    def number(self, form: str) -> int:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(value)

    def name(self) -> str:
        return self.take(2 * self.number("<B")).decode("utf-16-le")

    def skip_headers(self) -> None:
        (length,) = struct.unpack_from("<I", self.data, self.at)
        self.at += length

    def __bool__(self) -> bool:
        return self.at < len(self.data)


def batch(body: bytes) -> str:
    """Return the text of a batch."""
    reader = _Reader(body)
    reader.skip_headers()
    return reader.data[reader.at :].decode("utf-16-le")


def transaction(body: bytes) -> TransactionRequest:
    """Return the request to the transaction manager ("Transaction Manager Request")."""
    reader = _Reader(body)
    reader.skip_headers()
    verb = _TM[reader.number("<H")]
    if verb in ("commit", "rollback"):
        reader.name()
        return TransactionRequest(verb, bool(reader.number("<B") & 1))
    return TransactionRequest(verb, begins_next=False)


def calls(body: bytes) -> Iterator[Call]:
    """Yield the calls in one message: drivers combine several."""
    reader = _Reader(body)
    reader.skip_headers()
    while reader:
        length = reader.number("<H")
        if length == _NONE:
            procedure = _PROCEDURES.get(number := reader.number("<H"), f"procedure {number}")
        else:
            procedure = reader.take(2 * length).decode("utf-16-le")
        reader.take(2)  # options
        arguments: list[object] = []
        while reader and reader.data[reader.at] not in (0x80, 0xFF):
            reader.name()
            reader.take(1)  # by value, or for output
            arguments.append(_argument(reader))
        reader.take(1)
        yield Call(procedure, arguments)


def _argument(reader: _Reader) -> object:
    kind = reader.number("<B")
    if kind in _FIXED:
        return reader.number(_FIXED[kind])
    if kind in _SIZED or kind in _DECIMALS:
        reader.take(3 if kind in _DECIMALS else 1)
        data = reader.take(reader.number("<B"))
        return int.from_bytes(data, "little", signed=True) if data else None
    if kind in _TIMES or kind == _DATE:
        reader.take(1 if kind in _TIMES else 0)
        return reader.take(reader.number("<B")) or None
    if kind in (_TEXT, _NTEXT):
        reader.take(4 + 5)
        length = reader.number("<i")
        return None if length < 0 else _decoded(kind, reader.take(length))
    if kind in _BINARY | _ANSI | _WIDE:
        longest = reader.number("<H")
        reader.take(0 if kind in _BINARY else 5)
        if longest == _IN_PARTS:
            return _decoded(kind, _parts(reader))
        length = reader.number("<H")
        return None if length == _NONE else _decoded(kind, reader.take(length))
    raise NotImplementedError(f"an argument of type {kind:#x}")


def _parts(reader: _Reader) -> bytes:
    reader.number("<Q")
    found = b""
    while length := reader.number("<I"):
        found += reader.take(length)
    return found


def _decoded(kind: int, data: bytes) -> object:
    if kind in _BINARY:
        return data
    return data.decode("utf-16-le" if kind in _WIDE or kind == _NTEXT else "cp1252")
