"""Keys of documents, names of locks, and their text in errors, log records, spans and comments.

The text is short, and on one line.

A key may come from a form or a URL.  Unchanged, its line breaks and escape codes would forge log
records, and each record would repeat a megabyte of it.
"""

from __future__ import annotations

import unicodedata
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from reprlib import Repr
from typing import Any, Final
from uuid import UUID

from sqlalchemy import inspect

Identity = tuple[Any, ...]
"""A primary key: its values in mapper order."""

DocumentKey = tuple[type[Any], Identity]
"""The root mapped class and the primary key: the same for all classes of a hierarchy."""

LockedName = tuple[None, tuple[str]]
"""A name locked by ``lock_key()``, in place of a document: ``(None, ("user:42",))``."""

_LONGEST: Final = 80
_BITS: Final = 256  # Python refuses to print huge integers, and is slow with long ones


class _ShortRepr(Repr):
    """``repr()``, shortened in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = _LONGEST
        self.maxlevel = 2

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > _BITS:
            return f"<an integer of {x.bit_length()} bits>"
        return super().repr_int(x, level)

    def repr_bytes(self, x: bytes, level: int) -> str:
        return self.repr_instance(x[:_LONGEST], level)

    def repr_instance(self, x: object, level: int) -> str:
        if inspect(x, raiseerr=False) is not None:
            return object.__repr__(x)  # the repr() of a mapped object may load attributes
        return super().repr_instance(x, level)

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        # Unsorted: the base class sorts.
        if level <= 0:
            return "{...}"
        pairs = islice(x.items(), self.maxdict)
        shown = [": ".join(self.repr1(item, level - 1) for item in pair) for pair in pairs]
        return f"{{{', '.join(shown + ['...'] * (len(x) > self.maxdict))}}}"


_short_repr: Final = _ShortRepr().repr


def key_text(key: Any) -> str:
    """Return a key as errors and logs name it: its ``repr()``, of 80 characters at most."""
    return _shortened(printable(_short_repr(key)))


def is_storable(text: str) -> bool:
    """Return whether every database can store the text: it has no NUL, and no unpaired surrogate."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def short_text(text: str) -> str:
    """Return a key in the server's spelling: on one line, and as short."""
    return _shortened(printable(text[: _LONGEST + 1]))


def printable(text: str) -> str:
    """Return the text with its line breaks, escape codes and the like as ``repr()`` writes them."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def public_key(identity: Identity) -> Any:
    """Return the primary key as ``get_entity()`` takes it: a scalar, or a tuple."""
    return identity[0] if len(identity) == 1 else identity


def document_label(entity: type[Any] | None, ident: Any) -> str:
    """Return a document, or a named lock, as errors and logs name it: ``Order 42``.

    :param ident: as ``get_entity()`` takes it; None for several rows.
    """
    if entity is not None:
        return f"{entity.__name__} {'rows' if ident is None else key_text(ident)}"
    return "the transaction" if ident is None else f"named lock {key_text(ident)}"


IMMUTABLE: Final = frozenset(
    {bool, bytes, date, datetime, Decimal, float, int, str, time, timedelta, type(None), UUID}
)
"""Types of immutable values."""


def folded_key(key: Any) -> str:
    """Return one text for all keys that a database may consider equal, for the name of a lock.

    A collation may ignore case, accents, the width of a letter, and trailing spaces.
    """
    letters = unicodedata.normalize("NFKD", repr(key).casefold())
    return "".join(
        letter for letter in letters if not (unicodedata.combining(letter) or letter.isspace())
    )
