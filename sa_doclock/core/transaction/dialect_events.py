"""The events of a dialect: the errors and the statements of all its connections.

A listener on each connection would cost each transaction more than its work.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Final, NamedTuple
from weakref import ReferenceType, WeakSet, ref

from sqlalchemy import Connection, event
from sqlalchemy.engine import Compiled, Dialect, ExceptionContext

from ...dialects import strategies
from ...interruptions import Interruptible
from ...sqlalchemy_internals import allow_listening, insert_listener, listen_first
from .context import LockContext
from .error_translation import translate_error

# SQLAlchemy reports errors and statements to listeners of the dialect, which all sessions of an
# engine share.  So the Connection and the Compiled themselves keep the states.
# Threads: one thread at a time uses a Connection; for a Compiled, two threads find the same.
_STATES: Final = "sa_doclock_states"
"""The attribute of a Connection with the states of its sessions.

Several sessions may share one Connection: each keeps its own state.
"""
_ERROR: Final = "sa_doclock_error"
"""The attribute of a Connection, while listeners run: the driver's error, and ours for it."""

# Threads: changed under the lock, after the listeners are added.
_listened: WeakSet[Dialect] = WeakSet()
_first = Lock()

_STATEMENTS: Final = ("do_execute", "do_executemany", "do_execute_no_params")


class CompiledCheck(NamedTuple):
    """The check of a statement, each time before it is sent.

    :ivar check: gets the state of a session of the connection, and the statement's
        ExecutionContext.
    :ivar in_calls: also check within every lock call, not only one for the program's own statement.
    """

    check: Callable[[LockContext, Any], None]
    in_calls: bool


FindCheck = Callable[[Compiled], CompiledCheck | None]
_finders: list[FindCheck] = []  # Threads: features add to it when they are imported.


def check_statements(find: FindCheck) -> None:
    """Check the statements for which this function returns a check.

    :param find: called once for each compiled statement, when it is first sent.
    """
    _finders.append(find)


def follow_dialect(connection: Connection, state: LockContext) -> None:
    """Translate the errors of this connection, and check its statements.

    :param state: of a session in whose transaction it takes part.
    """
    own = ref(state)
    others: tuple[ReferenceType[LockContext], ...] = getattr(connection, _STATES, ())
    if others:  # a Connection that was lent again, or to several sessions
        vars(connection).pop(_ERROR, None)  # it remains if a listener raised another
        if own in others:
            return
        others = tuple(other for other in others if other() is not None)
    setattr(connection, _STATES, (*others, own))
    if connection.dialect not in _listened:
        _listen(connection.dialect)


def _listen(dialect: Dialect) -> None:
    with _first:
        if dialect not in _listened:
            for name in ("handle_error", *_STATEMENTS):
                allow_listening([dialect], name)
            listen_first(dialect, "handle_error", _on_error)  # a listener that raises ends the list
            event.listen(dialect, "handle_error", _raise_ours)
            for name in _STATEMENTS:  # another listener may execute the statement itself
                insert_listener(dialect, name, _before_execute)
            _listened.add(dialect)


def _on_error(context: ExceptionContext) -> BaseException | None:
    connection = context.connection
    # The state of a collected session with an open transaction may remain for a moment.
    states = [
        state
        for reference in getattr(connection, _STATES, ())
        if (state := reference()) is not None and state.session() is not None
    ]
    if connection is None or not states:
        return None
    with Interruptible(connection):  # otherwise the error would go unrecorded
        error = translate_error(states, context)
    setattr(connection, _ERROR, (context.original_exception, error))
    return error


def _raise_ours(context: ExceptionContext) -> BaseException | None:
    """Return our own error, even if a listener returned another one."""
    if context.connection is None:
        return None
    met, error = vars(context.connection).pop(_ERROR, (None, None))
    return error if met is context.original_exception else None


def _before_execute(*arguments: Any) -> None:
    context = arguments[-1]
    compiled = context.compiled
    if compiled is None:  # text
        return
    try:
        checks = compiled.sa_doclock_checks
    except AttributeError:  # it is executed for the first time
        found = [find(compiled) for find in _finders]
        checks = compiled.sa_doclock_checks = tuple(filter(None, found))
    for check, in_calls in checks:
        for reference in getattr(context.root_connection, _STATES, ()):
            state = reference()
            # Inline, because every lock comes here.
            if state and (in_calls or not (call := state.calls.current) or call.request.as_is):
                check(state, context)


def _schema_check(compiled: Compiled) -> CompiledCheck | None:
    """Return the check of a construct that sets the current schema by a function of the database.

    No other construct can set it, or counts as foreign SQL.
    """
    known = strategies.get(compiled.dialect)
    marks = None if known is None else known.marks
    sets = marks is not None and marks.schema_setter and marks.schema_setter in str(compiled)
    return CompiledCheck(_before_schema_setter, in_calls=False) if sets else None


def _before_schema_setter(state: LockContext, context: Any) -> None:
    joined = state.connections.find(context.root_connection)
    if joined is not None and state.transaction.ledger.counts_on_transaction(joined.known):
        joined.before_foreign()


check_statements(_schema_check)
