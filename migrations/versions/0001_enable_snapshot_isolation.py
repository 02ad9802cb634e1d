"""Allow snapshot transactions on SQL Server; do nothing on any other database.

To run it in your own migration history, copy this file into your versions directory and set
down_revision to your head.
"""

from __future__ import annotations

from alembic import op

import sa_doclock.alembic  # noqa: F401  # adds two operations to op

revision = "sa_doclock_0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let SharedRead and SnapshotRead run as SNAPSHOT transactions."""
    op.enable_snapshot_isolation()  # type: ignore[attr-defined]  # not in Alembic's stubs


def downgrade() -> None:
    """Disallow them; SharedRead and SnapshotRead then fail with error 3952."""
    op.disable_snapshot_isolation()  # type: ignore[attr-defined]
