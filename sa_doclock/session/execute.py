"""What a LockingSession executes: locked selects, guarded writes, and all else as before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Result, Select, inspect
from sqlalchemy.orm import FromStatement, Mapper
from sqlalchemy.sql import Executable

from ..errors import DocLockError
from ..guard import Write
from ..locking import execute_locked, refuse_streaming, without_autoflush
from ..options import LockOptions
from ..statements import (
    LOCK_OPTION,
    LockedEntity,
    add_lock,
    is_plain_select,
    locked_entity_of,
    refuse_nested_lock,
    refuse_other_lock,
)
from ..transaction import add_document
from .hooks import BookkeepingSession

_UNGUARDED: Final = nullcontext()


class ExecutingSession(BookkeepingSession):
    """A Session that looks at the statements that it executes."""

    def bulk_save_objects(self, objects: Iterable[object], *args: Any, **kwargs: Any) -> None:
        """See ``Session.bulk_save_objects()``."""
        self._books.refuse_write_in_snapshot()
        objects = list(objects)
        with self._books.bulk.objects(objects):
            super().bulk_save_objects(objects, *args, **kwargs)

    def bulk_insert_mappings(
        self, mapper: Any, mappings: Iterable[dict[str, Any]], *args: Any, **kwargs: Any
    ) -> None:
        """See ``Session.bulk_insert_mappings()``."""
        self._books.refuse_write_in_snapshot()
        mappings = list(mappings)
        with self._books.bulk.rows(inspect(mapper).mapper, mappings, Write.INSERT):
            super().bulk_insert_mappings(mapper, mappings, *args, **kwargs)

    def bulk_update_mappings(self, mapper: Any, mappings: Iterable[dict[str, Any]]) -> None:
        """See ``Session.bulk_update_mappings()``."""
        self._books.refuse_write_in_snapshot()
        mappings = list(mappings)
        with self._books.bulk.rows(inspect(mapper).mapper, mappings, Write.UPDATE):
            super().bulk_update_mappings(mapper, mappings)

    if not TYPE_CHECKING:
        # The signatures are Session's, with all their overloads.  Not a do_orm_execute
        # listener, which every statement and every lazy load would pay for.

        def execute(self, statement: Any, params: Any = None, **kwargs: Any) -> Any:
            """See ``Session.execute()``."""
            if is_plain_select(statement):
                return super().execute(statement, params, **kwargs)
            locked = self._locked_by(statement)
            if locked is None:
                with self._guarded(statement, params, kwargs):
                    return super().execute(statement, params, **kwargs)
            return self._execute_locked(locked, statement, params, **kwargs)

        def scalars(self, statement: Any, params: Any = None, **kwargs: Any) -> Any:
            """See ``Session.scalars()``."""
            if is_plain_select(statement):
                return super().scalars(statement, params, **kwargs)
            locked = self._locked_by(statement)
            if locked is None:
                with self._guarded(statement, params, kwargs):
                    return super().scalars(statement, params, **kwargs)
            return self._execute_locked(locked, statement, params, **kwargs).scalars()

        def scalar(self, statement: Any, params: Any = None, **kwargs: Any) -> Any:
            """See ``Session.scalar()``."""
            locked = self._locked_by(statement)
            if locked is None:
                with self._guarded(statement, params, kwargs):
                    return super().scalar(statement, params, **kwargs)
            return self._execute_locked(locked, statement, params, **kwargs).scalar()

    def _locked_by(self, statement: Executable) -> LockedEntity | None:
        if not isinstance(statement, Executable):
            return None  # Session says better what is wrong with it
        found = locked_entity_of(statement)
        if not isinstance(statement, Select):
            refuse_nested_lock(statement)
        return found

    def _guarded(
        self, statement: Executable, params: Any, arguments: Mapping[str, Any]
    ) -> AbstractContextManager[None]:
        if not getattr(statement, "is_dml", False):
            return _UNGUARDED
        if isinstance(statement, FromStatement):  # of an UPDATE .. RETURNING
            statement = statement.element
        self._books.refuse_write_in_snapshot()
        names = arguments.keys() & {"execution_options", "bind_arguments"}
        how = {name: arguments[name] for name in names}
        guarded = self._books.bulk.statement(statement, params, how)
        pipelining = self._books.pipelining
        return guarded if pipelining is None else pipelining.answered(guarded)

    def _execute_locked(
        self,
        locked: LockedEntity,
        statement: Select[Any],
        params: Any = None,
        *,
        execution_options: Mapping[str, Any] = MappingProxyType({}),
        bind_arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Result[Any]:
        # make_stale() does what populate_existing does in a plain Session, and does not
        # overwrite pending changes elsewhere.
        options = {**execution_options, "populate_existing": False, LOCK_OPTION: None}
        arguments = dict(bind_arguments or {})
        run = partial(
            super().execute,
            params=params,
            execution_options=options,
            bind_arguments=arguments,
            **kwargs,
        )
        mapper: Mapper[Any] = inspect(locked.entity).mapper
        self._books.check()

        def attempt(lock: LockOptions, seconds: float | None) -> Result[Any]:
            with_it = statement
            if lock is not locked.lock:  # NoWait, of a lock_timeout of 0 or of a batch
                with_it = add_lock(statement, locked.entity, lock)
            asked = locked._replace(lock=lock, seconds=seconds)
            with without_autoflush(self):
                return execute_locked(self, self._books, run, with_it, arguments, asked)

        lock, seconds = self._books.patience.of(locked.lock, locked.seconds)
        try:
            refuse_other_lock(statement, locked)
            refuse_streaming({**statement.get_execution_options(), **execution_options})
            return self._books.take(mapper.class_, None, lock, seconds, attempt)
        except DocLockError as error:
            where = self._product_of(**{"mapper": mapper, "clause": statement, **arguments})
            add_document(error, mapper.class_, None, lock, where)
            raise
