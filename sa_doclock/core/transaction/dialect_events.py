"""The events of a dialect: the errors and the statements of all its connections.

A listener of each connection would cost every transaction more than all that it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, Final
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

from sqlalchemy import Connection, event
from sqlalchemy.engine import Compiled, Dialect, ExceptionContext

from ..sqlalchemy_internals import allow_listening
from ..statements import NO_LOCKS, CompiledLocks, locks_in
from .compiled_locks import check_locks
from .context import LockContext
from .error_translation import translate_error

# SQLAlchemy tells of an error and of a statement by its dialect, which all sessions of an engine
# share.  So what finds the sessions that a connection belongs to is global.  Several sessions may have
# been given one Connection: each keeps its own state.
# Threads: a Connection is used by one thread at a time, and each entry is a tuple that is
# replaced.
_states: WeakKeyDictionary[Connection, tuple[ReferenceType[LockContext], ...]]
_states = WeakKeyDictionary()
# Threads: it is changed under the lock, behind the listening.
_listened: WeakSet[Dialect] = WeakSet()
_first = Lock()

# By what SQLAlchemy keeps in its own cache of statements, and frees with it.
# Threads: what two threads find at once is the same.
_locks: WeakKeyDictionary[Compiled, CompiledLocks] = WeakKeyDictionary()
_STATEMENTS: Final = ("do_execute", "do_executemany", "do_execute_no_params")


def follow_dialect(connection: Connection, state: LockContext) -> None:
    """Translate the errors of this connection, and look for locks in its statements.

    :param state: of a session in whose transaction it takes part.
    """
    own = ref(state)
    others = _states.get(connection, ())
    if own in others:
        return
    if others:  # a Connection that was lent to several sessions
        others = tuple(one for one in others if one() is not None)
    _states[connection] = (*others, own)
    if connection.dialect not in _listened:
        _listen(connection.dialect)


def _listen(dialect: Dialect) -> None:
    with _first:
        if dialect not in _listened:
            for name in ("handle_error", *_STATEMENTS):
                allow_listening([dialect], name)
            event.listen(dialect, "handle_error", _on_error)
            for name in _STATEMENTS:  # first: another's may execute the statement by itself
                event.listen(dialect, name, _before_execute, insert=True)
            _listened.add(dialect)


def _states_of(connection: Connection) -> Sequence[LockContext]:
    # A session that was collected, with its transaction open, may leave its state for a moment.
    known = _states.get(connection, ())
    return [state for one in known if (state := one()) is not None and state.session() is not None]


def _on_error(context: ExceptionContext) -> BaseException | None:
    states = () if context.connection is None else _states_of(context.connection)
    return translate_error(states, context) if states else None


def _before_execute(*arguments: Any) -> None:
    context = arguments[-1]
    compiled = context.compiled
    if compiled is None:  # text
        return
    locks = _locks.get(compiled)
    if locks is None:
        locks = _locks[compiled] = locks_in(compiled)
    if locks is NO_LOCKS:
        return
    connection = context.root_connection
    for reference in _states.get(connection, ()):
        state = reference()
        # The lock of the statement itself is then that of the call, which sees to it.
        if state is not None and (locks.within or state.calls.current is None):
            check_locks(state, connection, locks)
