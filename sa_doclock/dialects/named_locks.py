"""The named locks of a database, which a dialect may leave out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from sqlalchemy import Connection

from ..errors import LockFailed
from ..options import LockOptions


class NamedLocks(ABC):
    """Locks of names: a key in place of a row."""

    end_with_transaction: ClassVar[bool] = True
    """The end of the transaction releases them, and not a statement of ours."""

    @abstractmethod
    def take(
        self, connection: Connection, key: str, lock: LockOptions, seconds: float | None
    ) -> type[LockFailed] | None:
        """Take a named lock, held to the end of the transaction that the connection is in.

        :param lock: ForUpdate, or SharedRead, for which an exclusive one may stand in; NoWait
            comes as a modifier, with ``seconds`` None.
        :returns: None when it is held; the error, where the server reports it by a value.
        :raises LockNotSupported: this server cannot give it.
        """
