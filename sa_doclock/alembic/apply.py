"""ALTER DATABASE on a live server: ask first, log the blocking sessions, check afterwards."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

from alembic.operations import MigrateOperation, Operations
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from . import database_options as options
from .database_options import Setting, SnapshotState

# Below "alembic": every alembic.ini shows that logger at INFO, and fileConfig(), which env.py
# runs after its imports, disables the loggers that the file does not name.
log = logging.getLogger("alembic.sa_doclock")


class SnapshotIsolationOp(MigrateOperation):
    """An operation, and the state of the database that it asks for."""

    name: str
    wanted: SnapshotState
    contrary: SnapshotState  # another session is on its way to the opposite

    def __init__(self, *, read_committed_snapshot: bool = False) -> None:
        self.read_committed_snapshot = read_committed_snapshot

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The options to set, in order."""
        # The one that can fail at once goes first, before anybody has waited for the other.
        if self.read_committed_snapshot:
            return options.READ_COMMITTED_SNAPSHOT, options.ALLOW_SNAPSHOT_ISOLATION
        return (options.ALLOW_SNAPSHOT_ISOLATION,)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return the operation as Alembic compares and shows it."""
        return self.name, self.read_committed_snapshot


def apply(operations: Operations, op: SnapshotIsolationOp) -> None:
    """Set what is not set yet, outside of any transaction.

    :raises alembic.util.CommandError: it cannot be, or was not; the text says what to do.
    """
    to_set = _still_to_set(operations.get_bind(), op)
    if to_set:
        with _outside_transaction(operations.get_context()):
            for setting in to_set:
                _set(operations, setting, op.wanted)


def _still_to_set(bind: Connection, op: SnapshotIsolationOp) -> list[Setting]:
    row = _ask(bind)
    if row.name in options.SYSTEM_DATABASES:
        raise CommandError(
            f"{op.name}: the connection is to the system database {row.name!r};"
            " name your own database in the URL"
        )
    to_set = []
    for setting in op.settings:
        state = _state(row, setting)
        if state is op.wanted:
            log.info("%s: %s is %s already", row.name, setting.name, state.name)
            continue
        if state is op.contrary:
            raise CommandError(
                f"{row.name}: {setting.name} is {state.name}, so another session wants the"
                f" opposite of {op.wanted.name}; agree with its owner, then run the migration again"
            )
        to_set.append(setting)  # also on the way to what is wanted: ALTER DATABASE then waits
    return to_set


def _set(operations: Operations, setting: Setting, wanted: SnapshotState) -> None:
    bind = operations.get_bind()
    statement = setting.alter(wanted)
    _log_blocking_sessions(bind, setting, statement)
    try:
        operations.execute(statement)
    except DBAPIError as exc:
        raise CommandError(f"{statement}: {exc.orig}\n{setting.advice}") from exc
    row = _ask(bind)
    state = _state(row, setting)
    if state is not wanted:
        raise CommandError(
            f"{row.name}: {setting.name} is {state.name} after {statement!r} has returned."
            " A transition ends by itself with the transactions that were open"
            " (sys.dm_tran_active_snapshot_database_transactions); run the migration again when"
            f" sys.databases.{setting.column} says {wanted:d}"
        )
    log.info("%s: %s is %s now", row.name, setting.name, state.name)


def _log_blocking_sessions(bind: Connection, setting: Setting, statement: str) -> None:
    log.info("%s: %s", statement, setting.waits)
    try:
        rows = bind.execute(text(setting.blocking_sessions)).all()
    except DBAPIError as exc:
        if exc.connection_invalidated:
            raise
        # 297, 300: no VIEW SERVER STATE.  The list only informs, so a refusal is only logged.
        log.warning("cannot list the sessions in its way: %s", exc.orig)
        return
    for row in rows:
        log.warning(
            "in its way: session %s (login %s, host %s, program %s) for %s s",
            *(row.session_id, row.login_name, row.host_name, row.program_name, row.seconds),
        )


def _ask(bind: Connection) -> Row[Any]:
    # A transaction that began by itself would be one that autocommit_block() cannot end.
    with nullcontext() if bind.in_transaction() else bind.begin():
        return bind.execute(text(options.ASK)).one()


def _state(row: Row[Any], setting: Setting) -> SnapshotState:
    return SnapshotState(getattr(row, setting.column))


@contextmanager
def _outside_transaction(context: MigrationContext) -> Iterator[None]:
    """Alembic's ``autocommit_block()``, with words for the case that it only asserts against."""
    with ExitStack() as stack:
        try:
            stack.enter_context(context.autocommit_block())
        except AssertionError as exc:
            raise CommandError(
                "ALTER DATABASE cannot run in a transaction (error 226), and this connection is"
                " in one that Alembic did not begin and so will not end: in env.py, connect with"
                " engine.connect(), not engine.begin(), and use context.begin_transaction(); in"
                " the revision, put no autocommit_block() around it, it has its own"
            ) from exc
        try:
            yield
        except Exception:
            # When the connection is lost, Alembic's clean-up fails too and would hide why.
            with suppress(PendingRollbackError):
                stack.close()
            raise
