"""The method of a session that inserts a row where there is none to lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy.orm.interfaces import ORMOption

from ..options import LockOptions, LockTimeout
from .block_methods import BlockMethods

T = TypeVar("T")


class CreateMethods(BlockMethods):
    """A Session with the method that locks a row, or inserts it."""

    def get_or_create_entity(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.ForUpdate,
        *,
        defaults: Mapping[str, Any] | Callable[[], T] | None = None,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> tuple[T, bool]:
        """Return the entity with this primary key, and whether this call has inserted it.

        Its row is locked in either case, as by :meth:`get_entity`.  Of several callers at once one
        inserts the row; the others wait for the end of its transaction, and get that row, or
        insert it where it was rolled back.  An INSERT that is refused is undone by its savepoint, so
        that the transaction stays usable.

        Where the row is not there, pending changes are flushed before the savepoint.  The new row
        counts when the transaction is committed.

        The parameters and errors that are not listed here are those of :meth:`get_entity`.

        :param lock: ForUpdate, with NoKey or NoWait.
        :param defaults: where the row is not there: the arguments of the class beside those of its
            primary key; or a function without arguments that returns an object, which may have
            parts.  The function may be called twice, if a row comes and goes meanwhile.
        :param lock_timeout: as for :meth:`get_entity`, for all waits together.  The INSERT itself
            waits for others on PostgreSQL and SQL Server, for 1 ms at least.  On MySQL and MariaDB
            it waits for nobody who inserts by this method; behind another's INSERT of a unique key
            the server's ``innodb_lock_wait_timeout`` counts.
        :raises sqlalchemy.exc.IntegrityError: another constraint refuses the row.
        :raises ValueError: a read lock or SkipLocked; ``defaults`` has another primary key.
        :raises TypeError: ``defaults`` is neither a mapping nor a function, or its function returns
            no object of the class.
        """
        from ..features.creation import Creation, check_creation  # noqa: PLC0415  # at its first use

        lock, seconds = self._context.options.resolve(lock, lock_timeout)
        check_creation(lock, defaults)

        def get(lock: LockOptions, seconds: float | None) -> T | None:
            return self.get_entity(entity, ident, lock, lock_timeout=seconds, options=options)

        creation = Creation(self, entity, ident, lock, seconds, defaults, get)
        return self._take_or_roll_back(creation.run, opens=not self.in_transaction())
