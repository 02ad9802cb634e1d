"""Alembic operations that allow snapshot transactions in a SQL Server database.

SharedRead and SnapshotRead are SNAPSHOT transactions on SQL Server, and there a database has
to allow these first.  ``import sa_doclock.alembic`` in a revision or in env.py, then::

    def upgrade() -> None:
        op.enable_snapshot_isolation()

    def downgrade() -> None:
        op.disable_snapshot_isolation()

Alembic's type stubs know Alembic's own operations alone; for a type checker, write
``op.invoke(EnableSnapshotIsolationOp())``, which does the same.

On every other database both do nothing: not one statement, online or with ``--sql``.

Never run on a real SQL Server here; what is sent rests on Microsoft's documentation: "ALTER
DATABASE SET options", "sys.databases", "Enabling Row Versioning-Based Isolation Levels".
"""

from .operations import DisableSnapshotIsolationOp, EnableSnapshotIsolationOp

__all__ = ["DisableSnapshotIsolationOp", "EnableSnapshotIsolationOp"]
