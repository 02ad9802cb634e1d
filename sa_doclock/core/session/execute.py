"""The statements that a LockingSession executes: locked selects, guarded writes, and all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import CompoundSelect, Insert, Result, Select, event, insert, inspect, update
from sqlalchemy.orm import FromStatement, Mapper, ORMExecuteState, Session

from ...sqlalchemy_internals import (
    allow_listening,
    execute_listeners,
    for_update_clause,
    written_out,
)
from ..loading import NO_CHANGES, PENDING_BEFORE, pending_changes
from ..locking import RowsOfSelect, acquire
from ..statements import LOCK_OPTION, LockedEntity, locked_entity_of, refuse_nested_lock
from ..transaction import (
    NO_ARGUMENTS,
    Executor,
    LockContext,
    LockRequest,
    is_built,
    watch_all,
    watch_connection,
)
from .hooks import SessionWithContext, context_of


class ExecutingSession(SessionWithContext):
    """A Session that examines the statements that it executes."""

    def bulk_save_objects(self, objects: Iterable[object], *args: Any, **kwargs: Any) -> None:
        """See ``Session.bulk_save_objects()``."""
        self._context.transaction.refuse_write()
        objects = list(objects)
        guard = self._context.parts.guard
        guarded = None if guard is None else guard.around_objects(objects)
        with _around_bulk(self._context, guarded):
            super().bulk_save_objects(objects, *args, **kwargs)

    def bulk_insert_mappings(
        self, mapper: Any, mappings: Iterable[dict[str, Any]], *args: Any, **kwargs: Any
    ) -> None:
        """See ``Session.bulk_insert_mappings()``."""
        self._context.transaction.refuse_write()
        mappings = list(mappings)
        with self._around_rows(insert(inspect(mapper).mapper.class_), mappings):
            super().bulk_insert_mappings(mapper, mappings, *args, **kwargs)

    def bulk_update_mappings(self, mapper: Any, mappings: Iterable[dict[str, Any]]) -> None:
        """See ``Session.bulk_update_mappings()``."""
        self._context.transaction.refuse_write()
        mappings = list(mappings)
        with self._around_rows(update(inspect(mapper).mapper.class_), mappings):
            super().bulk_update_mappings(mapper, mappings)

    def _around_rows(
        self, statement: Any, rows: list[dict[str, Any]]
    ) -> AbstractContextManager[object]:
        guard, how = self._context.parts.guard, {"execution_options": {"autoflush": False}}
        guarded = guard.around_dml(statement, rows, how) if guard is not None and rows else None
        return _around_bulk(self._context, guarded)

    if not TYPE_CHECKING:
        # The signatures are Session's, with all their overloads.  A do_orm_execute listener instead
        # would cost every statement and every lazy load.

        def execute(self, statement: Any, params: Any = None, **kwargs: Any) -> Any:
            """See ``Session.execute()``."""
            ours = self._execute_ours(statement, params, kwargs)
            return super().execute(statement, params, **kwargs) if ours is None else ours

        def scalars(self, statement: Any, params: Any = None, **kwargs: Any) -> Any:
            """See ``Session.scalars()``."""
            ours = self._execute_ours(statement, params, kwargs)
            return super().scalars(statement, params, **kwargs) if ours is None else ours.scalars()

        def scalar(self, statement: Any, params: Any = None, **kwargs: Any) -> Any:
            """See ``Session.scalar()``."""
            ours = self._execute_ours(statement, params, kwargs)
            return super().scalar(statement, params, **kwargs) if ours is None else ours.scalar()

        def refresh(
            self, instance: Any, attribute_names: Any = None, with_for_update: Any = None
        ) -> None:
            """See ``Session.refresh()``."""
            calls = self._context.calls
            outer = calls.before_refresh  # of a refresh whose listener calls this one
            try:
                calls.before_refresh = pending_changes(self) if with_for_update else None
                super().refresh(instance, attribute_names, with_for_update)
            finally:
                calls.before_refresh = outer

    def _execute_ours(
        self, statement: Any, params: Any, arguments: Mapping[str, Any]
    ) -> Result[Any] | None:
        if "bind_arguments" in arguments:
            self._note_bind(arguments["bind_arguments"])
        if (
            type(statement) is Select
            and for_update_clause(statement) is None
            and LOCK_OPTION not in statement.get_execution_options()
            and not execute_listeners(self)
        ):
            return None  # most statements, and every lazy load
        written = written_out(statement)
        if not isinstance(written, Select):
            refuse_nested_lock(written)
        elif (locked := locked_entity_of(written)) is not None:
            return self._execute_locked(locked, written, params, arguments)
        return self._execute_other(statement, written, params, arguments)

    def _execute_other(
        self, statement: Any, written: Any, params: Any, arguments: Mapping[str, Any]
    ) -> Result[Any] | None:
        listens_last = bool(execute_listeners(self)) and self._listen_last()
        if getattr(written, "is_dml", False):
            self._context.transaction.refuse_write()
            if listens_last:
                return None  # _after_listeners() checks the final statement
            run = partial(super().execute, statement, params)
            return _execute_dml(self._context, written, params, arguments, run)
        execute = _executor_of(self._context, self, written)
        if execute is None:
            self._note_foreign(written)
        elif not listens_last:  # otherwise the part executes the final statement
            run = partial(super().execute, params=params, **arguments)
            options, binds = arguments.get("execution_options", {}), arguments.get("bind_arguments")
            return execute(run, options, binds or {})
        before = pending_changes(self) if listens_last else NO_CHANGES
        given = self._with_clause(written, arguments)
        if before is NO_CHANGES and given is arguments:
            return None
        # Listeners may turn it into a lock, and change its rows.
        options = {**given.get("execution_options", {}), PENDING_BEFORE: before}
        return super().execute(statement, params, **{**given, "execution_options": options})

    def _with_clause(self, written: Any, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add a set operation to the bind arguments: SQLAlchemy calls get_bind() without it."""
        if not isinstance(written, CompoundSelect) or not self._context.parts.around_get_bind:
            return arguments
        binds = {"clause": written, **(arguments.get("bind_arguments") or {})}
        return {**arguments, "bind_arguments": binds}

    def _listen_last(self) -> bool:
        """Have _after_listeners() called after the program's listeners.

        :returns: False within a lock call, which checks its own statements.
        """
        if self._context.calls.current is not None:
            return False
        listeners = [*execute_listeners(self)]
        if listeners[-1] is not _after_listeners:
            allow_listening([self], "do_orm_execute")  # even while a listener executes a statement
            if _after_listeners in listeners:
                event.remove(self, "do_orm_execute", _after_listeners)
            event.listen(self, "do_orm_execute", _after_listeners)
        return True

    def _note_foreign(self, written: Any) -> None:
        """Note a statement that the library cannot read, such as text() or DDL."""
        if is_built(written):
            return
        context = self._context
        context.connections.note_foreign()
        if context.calls.current is not None:  # of a listener; the lock is in no ledger yet
            for connection in context.connections.all():
                watch_connection(context, connection)
        elif not context.ledger.is_empty():
            watch_all(context)  # it may end the transaction

    def _execute_locked(
        self,
        locked: LockedEntity,
        statement: Select[Any],
        params: Any,
        arguments: Mapping[str, Any],
        given: Mapping[str, Any] = NO_ARGUMENTS,
        document: tuple[type[Any] | None, Any] = (None, None),
    ) -> Result[Any]:
        own_options = arguments.get("execution_options", {})
        binds = dict(arguments.get("bind_arguments") or {})
        # Expiring works like populate_existing, and does not overwrite pending changes elsewhere.
        options = {**own_options, "populate_existing": False, LOCK_OPTION: None}
        ours = {"params": params, "execution_options": options, "bind_arguments": binds}
        run = partial(super().execute, **{**arguments, **ours})
        mapper: Mapper[Any] = inspect(locked.entity).mapper
        lock, seconds = self._context.options.resolve(locked.lock, locked.seconds)
        request = LockRequest(
            document[0] or mapper.class_,
            document[1],
            lock,
            seconds,
            mapper,
            bind_arguments={**binds, "mapper": mapper, "clause": statement},
            given=given,
        )
        target = RowsOfSelect(self._context, request, statement, locked, run, own_options)
        if target.request is not request:  # the router's database executes all of it
            binds.update(target.request.bind_arguments)
        return acquire(target)


def _executor_of(context: LockContext, session: Session, statement: Any) -> Executor | None:
    adoption = context.parts.adoption
    return None if adoption is None else adoption.executor(session, statement)


@contextmanager
def _around_bulk(
    context: LockContext, guarded: AbstractContextManager[Any] | None
) -> Iterator[None]:
    """Return the block around a bulk method.

    :param guarded: the guard's block.
    """
    with ExitStack() as stack:
        if guarded is not None:
            stack.enter_context(guarded)
        for around_write in context.parts.around_write:
            stack.enter_context(around_write(None, None, NO_ARGUMENTS))
        yield


def _execute_dml(
    context: LockContext,
    written: Any,
    params: Any,
    arguments: Mapping[str, Any],
    run: Callable[..., Result[Any]],
) -> Result[Any]:
    """Check and execute an INSERT, UPDATE or DELETE.

    :param run: executes it with these arguments.
    """
    inner = written.element if isinstance(written, FromStatement) else written
    names = arguments.keys() & {"execution_options", "bind_arguments"}
    how = {name: arguments[name] for name in names}
    parts = context.parts
    blocks = (
        [*parts.around_write]
        if parts.guard is None
        else [parts.guard.around_dml, *parts.around_write]
    )
    with ExitStack() as stack:
        if context.transaction.outbox is not None:
            stack.enter_context(context.transaction.outbox.paused())
        noting = [stack.enter_context(block(inner, params, how)) for block in blocks]
        if isinstance(inner, Insert) and inner.select is not None:
            # SQLAlchemy keeps the number of rows only with this option.
            options = {"preserve_rowcount": True, **arguments.get("execution_options", {})}
            arguments = {**arguments, "execution_options": options}
        result = run(**arguments)
        for note_returned in noting:
            result = note_returned(result)
    return result


def _after_listeners(state: ORMExecuteState) -> Result[Any] | None:
    """Check a write, or take a lock, that the program's listeners made of a statement."""
    context = context_of(cast("SessionWithContext", state.session))
    if context.calls.current is not None or locked_entity_of(state.statement) is not None:
        return None  # a statement of ours
    written = written_out(state.statement)
    if getattr(written, "is_dml", False):
        return _execute_dml_of(context, state, written)
    execute = _executor_of(context, state.session, written)
    if execute is None:
        return None

    options = {PENDING_BEFORE: NO_CHANGES, **state.execution_options}
    return execute(state.invoke_statement, options, state.bind_arguments)


def _execute_dml_of(context: LockContext, state: ORMExecuteState, written: Any) -> Result[Any]:
    """Check and execute a write that listeners made or preceded."""
    context.transaction.refuse_write()
    options: Mapping[str, Any] = state.local_execution_options
    arguments = {
        # SQLAlchemy's own concern this statement, not a question about its rows.
        "execution_options": {name: options[name] for name in options if name[:4] != "_sa_"},
        "bind_arguments": state.bind_arguments,
    }

    def run(**arguments: Any) -> Result[Any]:
        return state.invoke_statement(execution_options=arguments["execution_options"])

    return _execute_dml(context, written, state.parameters, arguments, run)
