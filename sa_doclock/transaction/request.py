"""The request of one call, unchanged from the public method to the text of an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy.orm import Mapper
from sqlalchemy.orm.interfaces import ORMOption

from ..lock_info import document_label
from ..options import LockOptions

NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})


class LockRequest(NamedTuple):
    """One lock, as a call asks for it.

    :ivar entity: the mapped class; None for a named lock.
    :ivar ident: the primary key, or the name, as the caller gave it; None for several rows.
    :ivar lock: the lock with its modifiers.
    :ivar seconds: how long to wait for another holder; None as the server is configured.
    :ivar mapper: of ``entity``.
    :ivar keys: the primary keys of the rows, where they are known before.
    :ivar options: loader options of the caller.
    :ivar bind_arguments: from which ``Session.get_bind()`` finds the database.
    """

    entity: type[Any] | None
    ident: Any
    lock: LockOptions
    seconds: float | None = None
    mapper: Mapper[Any] | None = None
    keys: Sequence[tuple[Any, ...]] = ()
    options: Sequence[ORMOption] = ()
    bind_arguments: Mapping[str, Any] = NO_ARGUMENTS

    @property
    def by_key(self) -> bool:
        """True if its rows are found by primary key: then only a lock makes them wait."""
        return self.entity is None or bool(self.keys)

    @property
    def document(self) -> str:
        """The document in the words of an error: ``Order 42``."""
        return document_label(self.entity, self.ident)
