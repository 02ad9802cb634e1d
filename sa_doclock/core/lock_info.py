"""Names of what is locked: a document by its class and key, or a name."""

from __future__ import annotations

from typing import Any

from .key_text import key_text

Identity = tuple[Any, ...]
"""A primary key: its values in mapper order."""

DocumentKey = tuple[type[Any], Identity]
"""The root mapped class and the primary key: the same for all classes of a hierarchy."""

LockedName = tuple[None, tuple[str]]
"""A name that ``lock_key()`` has locked, in place of a document: ``(None, ("user:42",))``."""


def public_key(identity: Identity) -> Any:
    """Return the primary key as ``get_entity()`` takes it: a scalar, or a tuple of several."""
    return identity[0] if len(identity) == 1 else identity


def document_label(entity: type[Any] | None, ident: Any) -> str:
    """Return a document, or a named lock, as errors and logs name it: ``Order 42``.

    :param ident: as ``get_entity()`` takes it; None for several rows.
    """
    if entity is not None:
        return f"{entity.__name__} {'rows' if ident is None else key_text(ident)}"
    return "the transaction" if ident is None else f"named lock {key_text(ident)}"
