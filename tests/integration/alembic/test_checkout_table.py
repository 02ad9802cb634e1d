"""The table of check-outs: created by an operation, written by autogenerate, and left alone."""

from __future__ import annotations

import io

import pytest
import sqlalchemy as sa
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.operations.ops import UpgradeOps

import sa_doclock.alembic
from sa_doclock import checkout_table
from tests.support.databases import Database

NAME = "co_alembic"


def written(connection: sa.Connection, metadata: sa.MetaData) -> str:
    """Return what autogenerate writes into upgrade()."""
    others_tables = {"include_name": lambda name, kind, _: kind != "table" or name == NAME}
    script = produce_migrations(
        MigrationContext.configure(connection, opts=others_tables), metadata
    )
    upgrade, downgrade = script.upgrade_ops, script.downgrade_ops
    assert isinstance(upgrade, UpgradeOps)
    assert downgrade is not None
    code = render_python_code(upgrade)
    return "" if upgrade.is_empty() else f"{code} | {render_python_code(downgrade)}"


def test_it_is_created_written_and_left_alone(database: Database) -> None:
    metadata, other = sa.MetaData(), sa.MetaData()
    table = checkout_table(metadata, NAME)
    engine = database.engine()
    with engine.connect() as connection:
        metadata.drop_all(connection)
        code = written(connection, metadata)
        assert f"op.create_checkout_table(name={NAME!r})" in code
        assert f"op.drop_checkout_table(name={NAME!r})" in code
        assert "create_index" not in code
        assert "create_table(" not in code

        op = Operations(MigrationContext.configure(connection))
        op.create_checkout_table(name=NAME)  # type: ignore[attr-defined]
        indexes = {one["name"] for one in sa.inspect(connection).get_indexes(NAME)}
        assert indexes == {f"ix_{NAME}_owner", f"ix_{NAME}_until"}
        assert connection.scalars(sa.select(table.c.id)).all() == []

        assert written(connection, metadata) == ""  # it is known
        assert NAME not in written(connection, other)  # it is not known

        op.drop_checkout_table(name=NAME)  # type: ignore[attr-defined]
        assert not sa.inspect(connection).has_table(NAME)
        connection.commit()


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb", "mssql", "sqlite"])
def test_the_script(dialect: str) -> None:
    output = io.StringIO()
    context = MigrationContext.configure(
        dialect_name=dialect, opts={"as_sql": True, "output_buffer": output}
    )
    Operations(context).invoke(sa_doclock.alembic.CreateCheckoutTableOp(schema="sales"))
    sql = " ".join(output.getvalue().split())
    time = {"mysql": "DATETIME(6)", "mariadb": "DATETIME(6)", "mssql": "DATETIME2(6)"}
    time |= {"postgresql": "TIMESTAMP WITHOUT TIME ZONE", "sqlite": "DATETIME"}
    assert f"until {time[dialect]}" in sql.replace("[", "").replace("]", "")
    assert ("ENGINE=InnoDB" in sql) is (dialect in ("mysql", "mariadb"))
    assert "ix_doclock_checkouts_owner" in sql
    assert "sales" in sql
