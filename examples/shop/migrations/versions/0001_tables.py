"""The tables, and three initial items."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    items = op.create_table(
        "items",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("price", sa.Integer, nullable=False),
        sa.Column("stock", sa.Integer, nullable=False),
        sa.CheckConstraint("stock >= 0"),
    )
    op.create_table(
        "orders",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
    )
    op.create_table(
        "order_lines",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "order_id", sa.String(36), sa.ForeignKey("orders.id"), nullable=False, index=True
        ),
        sa.Column("item_id", sa.Integer, sa.ForeignKey("items.id"), nullable=False),
        sa.Column("quantity", sa.Integer, nullable=False),
        sa.Column("price", sa.Integer, nullable=False),
        sa.CheckConstraint("quantity > 0"),
    )
    op.create_table(
        "number_ranges",
        sa.Column("year", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("last", sa.Integer, nullable=False),
    )
    op.create_table(
        "payments",
        sa.Column("key", sa.String(100), primary_key=True),
        sa.Column(
            "order_id", sa.String(36), sa.ForeignKey("orders.id"), nullable=False, index=True
        ),
        sa.Column("year", sa.Integer),
        sa.Column("invoice", sa.Integer),
        sa.UniqueConstraint("year", "invoice"),
    )
    op.create_table(
        "mails",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("text", sa.String(200), nullable=False),
        sa.Column("sent", sa.Boolean, nullable=False, index=True),
    )
    op.bulk_insert(items, [{"id": n, "price": 10 * n, "stock": 1000} for n in (1, 2, 3)])


def downgrade() -> None:
    for name in ("mails", "payments", "number_ranges", "order_lines", "orders", "items"):
        op.drop_table(name)
