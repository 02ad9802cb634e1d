"""Alembic operations: the table of check-outs, and snapshot transactions of SQL Server.

``import sa_doclock.alembic`` in a revision, then::

    def upgrade() -> None:
        op.create_checkout_table()

    def downgrade() -> None:
        op.drop_checkout_table()

Autogenerate writes these for a table that :func:`sa_doclock.checkout_table` has put into the metadata,
and leaves the table alone once it exists.  Before Alembic 1.18, env.py has to import this module.

SharedRead and SnapshotRead are SNAPSHOT transactions on SQL Server, and there a database has
to allow these first::

    def upgrade() -> None:
        op.enable_snapshot_isolation()

    def downgrade() -> None:
        op.disable_snapshot_isolation()

Alembic's type stubs know Alembic's own operations alone; for a type checker, write
``op.invoke(EnableSnapshotIsolationOp())``, which does the same.

On every other database these two do nothing: not one statement, online or with ``--sql``.

Never run on a real SQL Server here; the statements rest on Microsoft's documentation: "ALTER
DATABASE SET options", "sys.databases", "Enabling Row Versioning-Based Isolation Levels".
"""

from .snapshot_isolation import DisableSnapshotIsolationOp, EnableSnapshotIsolationOp  # isort: skip  # it says where Alembic is missing
from .checkouts import CreateCheckoutTableOp, DropCheckoutTableOp, replace_checkout_tables

__all__ = [
    "CreateCheckoutTableOp",
    "DisableSnapshotIsolationOp",
    "DropCheckoutTableOp",
    "EnableSnapshotIsolationOp",
]
