"""The operations: op.enable_snapshot_isolation() and its opposite."""

from __future__ import annotations

try:
    from alembic.autogenerate import renderers
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations import Operations
except ImportError as exc:
    raise ImportError(
        "sa_doclock.alembic needs Alembic: pip install 'sa-doclock[alembic]'", name=exc.name
    ) from exc

from sqlalchemy.dialects.mssql.base import MSDialect

from .apply import SnapshotIsolationOp, apply
from .database_options import SnapshotState


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

        Asks sys.databases first and sends nothing if it is so already.  Otherwise the
        migration's transaction is committed, as by ``autocommit_block()``, and ALTER DATABASE
        returns when every transaction that was open in the database has ended, however long that
        takes; nobody is blocked or rolled back.  The log says whose they are where the login may
        know.  With ``--sql`` the script asks, commits and checks by itself.

        :param read_committed_snapshot: also set READ_COMMITTED_SNAPSHOT, which changes what
            READ COMMITTED means for *every* program; sa_doclock does not need it.  It needs
            to be the only connection to the database and fails at once if it is not; and
            memory-optimised tables with DURABILITY = SCHEMA_ONLY lose their rows.
        :raises alembic.util.CommandError: the server refused, or its state afterwards is not ON; a
            system database; another session is turning it OFF; the connection is in a transaction
            that Alembic did not begin.
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

        It waits, asks first and raises as ``enable_snapshot_isolation`` does.  It sets OFF, with
        ``read_committed_snapshot`` also READ_COMMITTED_SNAPSHOT; it does not know, and so does
        not restore, what the setting was before the upgrade.
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
