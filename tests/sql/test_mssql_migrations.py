"""SQL Server: the statements that the Alembic operations send, and those that they write into a script.

The server is scripted: tests/integration/alembic tests the effect of each, golden/ shows reviewers the text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from sa_doclock.alembic import DisableSnapshotIsolationOp, EnableSnapshotIsolationOp
from tests.integration.alembic.scripted import Server, migrating
from tests.integration.alembic.test_operations import script_of
from tests.sql.golden import FOLDER

Op = type[EnableSnapshotIsolationOp | DisableSnapshotIsolationOp]
GOLDEN = FOLDER / "migrations" / "mssql.sql"
HEAD = """\
-- mssql: what the Alembic operations send, a batch at a time, and the script that --sql writes.
"""
OPERATIONS: dict[Op, str] = {
    EnableSnapshotIsolationOp: "op.enable_snapshot_isolation",
    DisableSnapshotIsolationOp: "op.disable_snapshot_isolation",
}
_OURS = ("FROM sys.databases", "s.login_name", "ALTER DATABASE", "SET TRANSACTION")


def sent_by(operation: Op, *, rcs: bool) -> Iterator[str]:
    """Run the operation where it applies; yield our statements, with their mode."""
    on = operation is DisableSnapshotIsolationOp
    server = Server(snapshot=int(on))
    server.read_committed_snapshot = on
    with migrating(server) as op:
        op.invoke(operation(read_committed_snapshot=rcs))
    for sent in server.sent:
        if any(mark in sent.sql for mark in _OURS):
            mode = "autocommit" if sent.autocommit else "in a transaction"
            lines = "\n".join(line.rstrip() for line in sent.sql.splitlines())
            yield f"-- {mode}\n{lines}"


def golden() -> str:
    """Return the contents of the golden file."""
    parts = [HEAD]
    for (operation, name), rcs in itertools.product(OPERATIONS.items(), (False, True)):
        call = f"{name}({'read_committed_snapshot=True' if rcs else ''})"
        parts.append(_heading(call))
        parts += [f"{batch}\nGO\n" for batch in sent_by(operation, rcs=rcs)]
        parts.append(_heading(f"{call}, --sql"))
        parts.append(script_of(operation, "mssql", rcs=rcs).strip() + "\n")
    return "\n".join(parts)


def test_the_text_is_the_golden_one() -> None:
    assert golden() == GOLDEN.read_text(encoding="utf-8")


def _heading(title: str) -> str:
    return f"-- {title} ".ljust(100, "-")
