"""Runs the migrations on the shop's engine."""

from alembic import context
from shop.database import engine
from shop.models import Base

with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()
