"""op.enable_snapshot_isolation() and its opposite: two options of a SQL Server database.

On a live server: ask first, log the blocking sessions, check afterwards.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final

try:
    from alembic.autogenerate import renderers
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations import MigrateOperation, Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.util import CommandError
except ImportError as exc:
    raise ImportError(
        "sa_doclock.alembic needs Alembic: pip install 'sa-doclock[alembic]'", name=exc.name
    ) from exc

from sqlalchemy import Connection, Row, text
from sqlalchemy.dialects.mssql.base import MSDialect
from sqlalchemy.exc import DBAPIError, PendingRollbackError

SYSTEM_DATABASES: Final = ("master", "model", "msdb", "tempdb")

# By name: on Azure SQL, DB_ID() may differ from database_id ("DB_ID").
ASK: Final = """\
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()"""


class SnapshotState(enum.IntEnum):
    """sys.databases.snapshot_isolation_state; is_read_committed_snapshot_on has two of them."""

    OFF = 0
    ON = 1
    IN_TRANSITION_TO_OFF = 2
    IN_TRANSITION_TO_ON = 3


@dataclass(frozen=True)
class Setting:
    """One database option: its name, its column, and the sessions that can block it."""

    name: str
    column: str
    termination: str
    waits: str
    blocking_sessions: str  # SELECT session_id, login_name, host_name, program_name, seconds
    advice: str

    def alter(self, wanted: SnapshotState) -> str:
        """Return the statement that sets it."""
        return f"ALTER DATABASE CURRENT SET {self.name} {wanted.name}{self.termination}"

    def script(self, wanted: SnapshotState) -> str:
        """Return a batch for ``--sql`` that asks first, sets it and checks afterwards."""
        database = "SELECT 1 FROM sys.databases WHERE name = DB_NAME()"
        reached = f"{database} AND {self.column} = {wanted:d}"
        # Python writes a tuple of plain strings as SQL writes its list.
        return f"""\
-- {self.waits}
IF DB_NAME() IN {SYSTEM_DATABASES}
    THROW 50000, '{self.name} is not set in a system database, connect to your own', 1;
IF NOT EXISTS ({reached})
    {self.alter(wanted)};
IF NOT EXISTS ({reached})
    THROW 50000, '{self.name} is not {wanted.name} yet, see sys.databases.{self.column}', 1"""


ALLOW_SNAPSHOT_ISOLATION: Final = Setting(
    name="ALLOW_SNAPSHOT_ISOLATION",
    column="snapshot_isolation_state",
    termination="",  # not allowed ("Setting options")
    waits="waits until every transaction that is open in the database has ended, blocks nobody",
    blocking_sessions="""\
SELECT s.session_id, s.login_name, s.host_name, s.program_name,
    DATEDIFF(second, a.transaction_begin_time, GETDATE()) AS seconds
FROM sys.dm_tran_database_transactions AS d
JOIN sys.dm_tran_active_transactions AS a ON a.transaction_id = d.transaction_id
JOIN sys.dm_tran_session_transactions AS t ON t.transaction_id = d.transaction_id
JOIN sys.dm_exec_sessions AS s ON s.session_id = t.session_id
WHERE d.database_id = DB_ID() AND s.session_id <> @@SPID
ORDER BY a.transaction_begin_time""",
    advice="5011: the login needs ALTER on the database. 5061, 5070: somebody else has the"
    " database locked (a restore, another ALTER DATABASE); run the migration again afterwards.",
)

READ_COMMITTED_SNAPSHOT: Final = Setting(
    name="READ_COMMITTED_SNAPSHOT",
    column="is_read_committed_snapshot_on",
    # Otherwise the statement waits indefinitely for the last connection of the application's pool;
    # ROLLBACK IMMEDIATE would end other people's transactions.
    termination=" WITH NO_WAIT",
    waits="fails at once (5070) while any other connection to the database is open",
    blocking_sessions="""\
SELECT s.session_id, s.login_name, s.host_name, s.program_name,
    DATEDIFF(second, s.login_time, GETDATE()) AS seconds
FROM sys.dm_exec_sessions AS s
WHERE s.database_id = DB_ID() AND s.is_user_process = 1 AND s.session_id <> @@SPID
ORDER BY s.login_time""",
    advice="5011: the login needs ALTER on the database. 5061, 5070: it needs to be the only"
    " connection to the database; stop the application, its pools and open query windows, and run"
    " the migration again. Nobody was disconnected: a DBA who wants that runs the statement"
    " WITH ROLLBACK IMMEDIATE by hand, and the migration then finds it done.",
)


# Below "alembic": every alembic.ini shows that logger at INFO, and fileConfig(), which env.py runs
# after its imports, disables loggers that the file does not name.
log = logging.getLogger("alembic.sa_doclock")


class SnapshotIsolationOp(MigrateOperation):
    """An operation, and the wanted state of the database."""

    name: str
    wanted: SnapshotState
    contrary: SnapshotState  # another session is setting the opposite

    def __init__(self, *, read_committed_snapshot: bool = False) -> None:
        self.read_committed_snapshot = read_committed_snapshot

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The options to set, in order."""
        # First the setting that can fail at once, before anyone has waited for the other.
        if self.read_committed_snapshot:
            return READ_COMMITTED_SNAPSHOT, ALLOW_SNAPSHOT_ISOLATION
        return (ALLOW_SNAPSHOT_ISOLATION,)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return the operation as Alembic compares and shows it."""
        return self.name, self.read_committed_snapshot


def apply(operations: Operations, op: SnapshotIsolationOp) -> None:
    """Change the settings that are not set yet, outside any transaction.

    :raises alembic.util.CommandError: it failed or is not possible; the message says what to do.
    """
    to_set = _still_to_set(operations.get_bind(), op)
    if to_set:
        with _outside_transaction(operations.get_context()):
            for setting in to_set:
                _set(operations, setting, op.wanted)


def _still_to_set(bind: Connection, op: SnapshotIsolationOp) -> list[Setting]:
    row = _ask(bind)
    if row.name in SYSTEM_DATABASES:
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
        to_set.append(setting)  # also if it is being set: ALTER DATABASE then waits
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
        # 297, 300: no VIEW SERVER STATE.  The list is only informative, so only log this.
        log.warning("cannot list the sessions in its way: %s", exc.orig)
        return
    for row in rows:
        log.warning(
            "in its way: session %s (login %s, host %s, program %s) for %s s",
            *(row.session_id, row.login_name, row.host_name, row.program_name, row.seconds),
        )


def _ask(bind: Connection) -> Row[Any]:
    # autocommit_block() cannot end a transaction that autobegin started.
    with nullcontext() if bind.in_transaction() else bind.begin():
        return bind.execute(text(ASK)).one()


def _state(row: Row[Any], setting: Setting) -> SnapshotState:
    return SnapshotState(getattr(row, setting.column))


@contextmanager
def _outside_transaction(context: MigrationContext) -> Iterator[None]:
    """Alembic's ``autocommit_block()``, with a message for the case that Alembic only asserts."""
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
            # When the connection is lost, Alembic's clean-up fails too and would hide the reason.
            with suppress(PendingRollbackError):
                stack.close()
            raise


@Operations.register_operation("enable_snapshot_isolation")
class EnableSnapshotIsolationOp(SnapshotIsolationOp):
    """``ALLOW_SNAPSHOT_ISOLATION ON``; with an option also ``READ_COMMITTED_SNAPSHOT ON``."""

    name = "enable_snapshot_isolation"
    wanted = SnapshotState.ON
    contrary = SnapshotState.IN_TRANSITION_TO_OFF

    @classmethod
    def enable_snapshot_isolation(
        cls, operations: Operations, *, read_committed_snapshot: bool = False
    ) -> None:
        """Allow SNAPSHOT transactions in the connected SQL Server database.

        Reads sys.databases first, and changes nothing if they are allowed.  Otherwise the
        migration's transaction is committed, as by ``autocommit_block()``, and ALTER DATABASE waits
        until every transaction that was open in the database has ended, however long that takes; it
        blocks no transaction and rolls none back.  The log names these sessions if the login may see
        them.  With ``--sql`` the script itself asks, commits and checks.

        :param read_committed_snapshot: also set READ_COMMITTED_SNAPSHOT, which changes the rows
            that READ COMMITTED shows to *every* program; sa_doclock does not need it.  It needs to
            be the only connection to the database, and fails at once if it is not; and
            memory-optimised tables with DURABILITY = SCHEMA_ONLY lose their rows.
        :raises alembic.util.CommandError: the server refused, or its state afterwards is not ON; it
            is a system database; another session is turning it OFF; the connection is in a
            transaction that Alembic did not begin.
        """
        operations.invoke(cls(read_committed_snapshot=read_committed_snapshot))

    def reverse(self) -> DisableSnapshotIsolationOp:
        """Turn the same settings OFF."""
        return DisableSnapshotIsolationOp(read_committed_snapshot=self.read_committed_snapshot)


@Operations.register_operation("disable_snapshot_isolation")
class DisableSnapshotIsolationOp(SnapshotIsolationOp):
    """``ALLOW_SNAPSHOT_ISOLATION OFF``; with an option also ``READ_COMMITTED_SNAPSHOT OFF``."""

    name = "disable_snapshot_isolation"
    wanted = SnapshotState.OFF
    contrary = SnapshotState.IN_TRANSITION_TO_ON

    @classmethod
    def disable_snapshot_isolation(
        cls, operations: Operations, *, read_committed_snapshot: bool = False
    ) -> None:
        """Forbid SNAPSHOT transactions; SharedRead and SnapshotRead fail afterwards (3952).

        It waits, asks first and raises as ``enable_snapshot_isolation`` does.  It sets the option
        OFF, with ``read_committed_snapshot`` also READ_COMMITTED_SNAPSHOT; it does not restore the
        setting from before the upgrade.
        """
        operations.invoke(cls(read_committed_snapshot=read_committed_snapshot))

    def reverse(self) -> EnableSnapshotIsolationOp:
        """Turn the same settings ON."""
        return EnableSnapshotIsolationOp(read_committed_snapshot=self.read_committed_snapshot)


@renderers.dispatch_for(SnapshotIsolationOp)
def _render(autogen_context: AutogenContext, op: SnapshotIsolationOp) -> str:
    autogen_context.imports.add("import sa_doclock.alembic")
    prefix = (autogen_context.opts or {}).get("alembic_module_prefix", "op.") or ""
    return f"{prefix}{op.name}({'read_committed_snapshot=True' * op.read_committed_snapshot})"


@Operations.implementation_for(SnapshotIsolationOp)
def _run(operations: Operations, op: SnapshotIsolationOp) -> None:
    context = operations.get_context()
    if not isinstance(context.dialect, MSDialect):
        return
    if context.as_sql:
        with context.autocommit_block():
            for setting in op.settings:
                operations.execute(setting.script(op.wanted))
        return
    apply(operations, op)
