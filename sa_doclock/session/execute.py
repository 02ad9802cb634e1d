"""The statements that a LockingSession executes: locked selects, guarded writes, and all others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Result, Select, inspect
from sqlalchemy.orm import FromStatement, Mapper
from sqlalchemy.sql import Executable

from ..guard import Write
from ..locking import RowsOfSelect, acquire
from ..statements import LOCK_OPTION, LockedEntity, locked_entity_of, refuse_nested_lock
from ..transaction import LockRequest
from .hooks import SessionWithContext

_UNGUARDED: Final = nullcontext()


class ExecutingSession(SessionWithContext):
    """A Session that looks at the statements that it executes."""

    def bulk_save_objects(self, objects: Iterable[object], *args: Any, **kwargs: Any) -> None:
        """See ``Session.bulk_save_objects()``."""
        self._context.connections.refuse_write_in_snapshot()
        objects = list(objects)
        with self._context.dml.objects(objects):
            super().bulk_save_objects(objects, *args, **kwargs)

    def bulk_insert_mappings(
        self, mapper: Any, mappings: Iterable[dict[str, Any]], *args: Any, **kwargs: Any
    ) -> None:
        """See ``Session.bulk_insert_mappings()``."""
        self._context.connections.refuse_write_in_snapshot()
        mappings = list(mappings)
        with self._context.dml.rows(inspect(mapper).mapper, mappings, Write.INSERT):
            super().bulk_insert_mappings(mapper, mappings, *args, **kwargs)

    def bulk_update_mappings(self, mapper: Any, mappings: Iterable[dict[str, Any]]) -> None:
        """See ``Session.bulk_update_mappings()``."""
        self._context.connections.refuse_write_in_snapshot()
        mappings = list(mappings)
        with self._context.dml.rows(inspect(mapper).mapper, mappings, Write.UPDATE):
            super().bulk_update_mappings(mapper, mappings)

    if not TYPE_CHECKING:
        # The signatures are Session's, with all their overloads.  Not a do_orm_execute
        # listener, which every statement and every lazy load would pay for.

        def execute(self, statement: Any, params: Any = None, **kwargs: Any) -> Any:
            """See ``Session.execute()``."""
            if type(statement) is Select and LOCK_OPTION not in statement.get_execution_options():
                return super().execute(statement, params, **kwargs)
            locked = self._locked_by(statement)
            if locked is None:
                with self._guarded(statement, params, kwargs):
                    return super().execute(statement, params, **kwargs)
            return self._execute_locked(locked, statement, params, **kwargs)

        def scalars(self, statement: Any, params: Any = None, **kwargs: Any) -> Any:
            """See ``Session.scalars()``."""
            if type(statement) is Select and LOCK_OPTION not in statement.get_execution_options():
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
        self._context.connections.refuse_write_in_snapshot()
        names = arguments.keys() & {"execution_options", "bind_arguments"}
        how = {name: arguments[name] for name in names}
        guarded = self._context.dml.statement(statement, params, how)
        pipeline = self._context.pipeline
        return guarded if pipeline is None else pipeline.answered(guarded)

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
        # Expiring does what populate_existing does in a plain Session, and does not overwrite
        # pending changes elsewhere.
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
        lock, seconds = self._context.options.wait.resolve(locked.lock, locked.seconds)
        request = LockRequest(
            mapper.class_,
            None,
            lock,
            seconds,
            mapper,
            bind_arguments={**arguments, "mapper": mapper, "clause": statement},
        )
        target = RowsOfSelect(self._context, request, statement, locked, run, execution_options)
        return acquire(target)
