"""The primary keys of documents as texts, and back.

Two keys of a class have the same text only if they are equal, whatever program or driver writes
them: the text is that of the key in the row, not of the caller's key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from sqlalchemy import Connection, Enum, Uuid
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeDecorator, TypeEngine

from ...core.documents import key_value, own_table
from ...dialects.base import schema_of
from ...errors import LockNotSupported
from ...keys import Identity, key_text

_DIALECT: Final = DefaultDialect()  # a stored value must not depend on the driver


class DocumentName(NamedTuple):
    """A document as the table of check-outs names it.

    :ivar table: of its header, with its schema if given.
    :ivar ident: its primary key, as a text.
    :ivar id: a hash of both.
    """

    table: str
    ident: str
    id: str


def document_name(connection: Connection, root: Mapper[Any], identity: Identity) -> DocumentName:
    """Return how the table of check-outs names this document.

    :raises LockNotSupported: the key has a value that cannot be written as a text.
    """
    table = own_table(root)
    schema, ident = schema_of(connection, table), written_key(root, identity)
    words = json.dumps([schema, table.name, ident]).encode()
    return DocumentName(table_name(connection, root), ident, hashlib.sha256(words).hexdigest())


def table_name(connection: Connection, root: Mapper[Any]) -> str:
    """Return the name of the header's table, with its schema if given."""
    table = own_table(root)
    return ".".join(part for part in (schema_of(connection, table), table.name) if part)


def written_key(root: Mapper[Any], identity: Identity) -> str:
    """Return the key as a text: a JSON list for several columns."""
    columns = root.primary_key
    texts = [_written(column.type, value) for column, value in zip(columns, identity, strict=True)]
    if len(texts) == 1 and texts[0] is not None:
        return texts[0]
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def read_key(root: Mapper[Any], text: str) -> Identity | None:
    """Return the key that was written as this text; None if the class cannot read it."""
    columns = root.primary_key
    try:
        texts: list[str | None] = [text] if len(columns) == 1 else json.loads(text)
        return tuple(_read(column.type, text) for column, text in zip(columns, texts, strict=True))
    except Exception:  # noqa: BLE001  # a program's own type may raise anything
        return None


def _written(column_type: TypeEngine[Any], value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(column_type, TypeDecorator):
        with suppress(NotImplementedError):  # the type does not change the value
            value = column_type.process_bind_param(value, _DIALECT)
        return _written(column_type.impl_instance, value)
    if isinstance(column_type, Enum):
        store: Any = cast("Any", column_type).bind_processor(_DIALECT)
        return str(value if store is None else store(value))
    if isinstance(column_type, Uuid):
        return str(UUID(str(value)))
    if _tells_type(column_type):
        return _text(value)
    if isinstance(value, (str, int, float)):
        return json.dumps(value, ensure_ascii=False)
    raise _not_written(value)


def _read(column_type: TypeEngine[Any], text: str | None) -> Any:
    if text is None:
        return None
    if isinstance(column_type, TypeDecorator):
        value = _read(column_type.impl_instance, text)
        with suppress(NotImplementedError):
            value = column_type.process_result_value(value, _DIALECT)
        return value
    if isinstance(column_type, (Enum, Uuid)):
        return key_value(column_type, text)
    if not _tells_type(column_type):
        return json.loads(text)
    kind = column_type.python_type
    if kind is bytes:
        return bytes.fromhex(text)
    return text == "1" if kind is bool else key_value(column_type, text)


def _tells_type(column_type: TypeEngine[Any]) -> bool:
    """Return whether the type names the Python type of its values."""
    with suppress(NotImplementedError):
        return column_type.python_type in _KINDS
    return False


_KINDS: Final = (bool, int, float, Decimal, str, bytes, date, datetime, time)


def _text(value: Any) -> str:
    """:raises LockNotSupported: the type has no unambiguous text."""
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            return write(value)
    raise _not_written(value)


def _datetime(value: datetime) -> str:
    return (value if value.tzinfo is None else value.astimezone(timezone.utc)).isoformat()


_WRITERS: Final[tuple[tuple[Any, Callable[[Any], str]], ...]] = (
    (str, str.__str__),
    (int, int.__repr__),  # bool included
    (float, float.__repr__),
    (Decimal, lambda value: format(value.normalize(), "f") if value else "0"),
    ((bytes, bytearray, memoryview), lambda value: bytes(value).hex()),
    (datetime, _datetime),
    ((date, time), lambda value: str(value.isoformat())),
)


def _not_written(value: Any) -> LockNotSupported:
    return LockNotSupported(
        f"a document with the key {key_text(value)} cannot be checked out: it is of the type "
        f"{type(value).__name__}, which cannot be written as a text; map the column with a type "
        "that has python_type, or with a TypeDecorator of one"
    )
