"""get_or_create_entity(): the existing row, or a new one.

A missing row cannot be locked, so several callers may insert it at once.  The server lets one of
them continue; the others wait in their INSERT until its transaction ends.  Then each rolls back to
its savepoint, because the key is taken, and selects the row again.

InnoDB deadlocks there: a duplicate key leaves a shared lock, and a rolled-back INSERT leaves its
waiters a lock on the gap.  So on InnoDB no INSERT waits: the inserter holds a named lock
for that moment, and first checks, without waiting, whether another has the row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import iscoroutine
from typing import Any, Final, Generic, TypeVar

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapper, Session

from ..core.documents import RowKey, columns_values, mapper_of
from ..core.session import CoreSession
from ..core.transaction import add_document, database_name
from ..dialects import strategy_for
from ..errors import LockFailed, LockMisuse, LockNotAvailable
from ..functions import check_function
from ..keys import Identity, folded_key, key_text, public_key
from ..options import LockOptions, base_of, milliseconds

T = TypeVar("T")

_REFUSED: Final = 2
"""The number of INSERTs that a constraint may refuse while the row is missing.  The first may have
met a row that was deleted since; the second shows that it is another constraint.
"""

_SHORTEST_WAIT: Final = 0.001
"""The seconds that an INSERT may wait under NoWait, which it does not support."""


def check_creation(lock: LockOptions, defaults: object) -> None:
    """Check the arguments of get_or_create_entity().

    :raises ValueError: a lock under which nothing can be inserted.
    :raises TypeError: ``defaults`` is neither a mapping nor a function.
    """
    if base_of(lock) is not LockOptions.ForUpdate or LockOptions.SkipLocked in lock:
        raise ValueError(
            f"get_or_create_entity() needs ForUpdate, because it might insert the row; got {lock}"
        )
    if not (defaults is None or isinstance(defaults, Mapping)):
        check_function(
            *("defaults", defaults, "without arguments, or a mapping"),
            arguments=0,
            instead="a plain function that returns the new object",
        )


@dataclass(frozen=True)
class Creation(Generic[T]):
    """One call of get_or_create_entity().

    :ivar key: the key of the row that ``ident`` names.
    :ivar values: of the key.
    :ivar seconds: the limit of its waits, or None.
    :ivar get: locks and returns the row, or returns None.
    """

    session: CoreSession
    entity: type[T]
    ident: Any
    key: RowKey
    values: Identity
    lock: LockOptions
    seconds: float | None
    defaults: Mapping[str, Any] | Callable[[], T] | None
    get: Callable[[LockOptions, float | None], T | None]

    def run(self) -> tuple[T, bool]:
        """Return the locked row, and whether this call inserted it."""
        started, left = time.monotonic(), self.seconds
        refused: list[IntegrityError] = []
        while (found := self.get(self.lock, left)) is None:
            if len(refused) == _REFUSED:
                raise refused[-1]
            self.session.flush()  # others wait for the new row: flush earlier changes before it
            try:
                if self._insert(left):
                    return self._inserted(), True
            except IntegrityError as error:
                refused.append(error)
            left = self._left(started)
        return found, False

    def _left(self, started: float) -> float | None:
        """Return the seconds that remain, rounded to milliseconds; 0: do not wait."""
        if self.seconds is None:
            return None
        left = self.seconds - (time.monotonic() - started)
        return milliseconds(left) / 1000 if left > 0 else 0.0

    def _insert(self, seconds: float | None) -> bool:
        """Insert the row; return False if another transaction inserted it first.

        :raises IntegrityError: the row violates another constraint, or its key was taken meanwhile.
        """
        session, mapper = self.session, mapper_of(self.entity)
        # SQLAlchemy's method: LockingSession.connection() would make the isolation level uncertain.
        connection = Session.connection(session, bind_arguments={"mapper": mapper})
        strategy = strategy_for(connection)
        if LockOptions.NoWait in self.lock or seconds == 0:
            seconds = _SHORTEST_WAIT
        try:
            with strategy.inserting(connection, self._name(), seconds) as alone:
                if alone and not self._is_missing():
                    return False
                with session.begin_nested():
                    session.add(self._new(mapper))
                    session.flush()
        except LockFailed as error:
            database = database_name(session, {"mapper": mapper})
            add_document(error, self.entity, self.ident, self.lock, database)
            raise
        return True

    def _name(self) -> str:
        """Return the name of the row, equal for keys that a database may consider equal."""
        key = self.key
        names = "" if key.primary else f"{','.join(key.names)} "
        return f"insert {key.table.fullname} {names}{folded_key(self.values)}"

    def _is_missing(self) -> bool:
        try:
            with self.session.begin_nested():
                return self.get(self.lock | LockOptions.NoWait, None) is None
        except LockNotAvailable:
            return False

    def _new(self, mapper: Mapper[Any]) -> T:
        """:raises TypeError: the function returned another type.
        :raises ValueError: the object has another primary key.
        """
        key = dict(zip(self.key.names, self.values, strict=True))
        if callable(self.defaults):
            made = self.defaults()
            if iscoroutine(made):
                made.close()  # avoids "never awaited"
        else:
            self.check_own(mapper, self.defaults or {})
            made = self.entity(**{**key, **(self.defaults or {})})
        if not isinstance(made, self.entity):
            raise TypeError(f"defaults must return a {self.entity.__name__}, not {made!r}")
        for name, value in key.items():
            if getattr(made, name) is None:
                setattr(made, name, value)
        self.check_own(mapper, {name: getattr(made, name) for name in key})
        return made

    def check_own(self, mapper: Mapper[Any], defaults: Mapping[str, Any]) -> None:
        """:raises ValueError: the defaults have other values of the key."""
        given = dict(zip(self.key.names, self.values, strict=True))
        own = columns_values(
            *(
                mapper,
                self.key.columns,
                tuple(({**given, **defaults})[name] for name in given),
                defaults,
            )
        )
        if own != self.values:
            kind = "primary key" if self.key.primary else f"unique key ({', '.join(given)})"
            raise ValueError(
                f"defaults has the {kind} {key_text(public_key(own))}, but the call asks for "
                f"{key_text(public_key(self.values))}"
            )

    def _inserted(self) -> T:
        found = self.get(self.lock, None if LockOptions.NoWait in self.lock else self.seconds)
        if found is None:
            raise LockMisuse(
                "the inserted row cannot be found by its key: a trigger or a listener changed the "
                "key; add an object of your own with session.add()"
            )
        return found
