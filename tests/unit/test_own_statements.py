"""Every place where the library sends a statement of its own, and why it leaves the program's transaction unchanged.

An unlisted place fails here.  A question about the server or a table belongs in QUESTIONS: it runs
in ``with strategy.asking(connection)``, and tests/integration/questions runs it as the first statement of an engine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import sa_doclock

PACKAGE = Path(sa_doclock.__file__).parent
SENDING = {
    *("execute", "executemany", "exec_driver_sql", "scalar", "scalars", "ask_driver"),
    *("connection_setting", "get_isolation_level", "get_view_names", "get_materialized_view_names"),
}
Function = tuple[str, list[ast.AST]]
"""The name of a function, and what is in it and in no other within it."""
Functions = list[Function]
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ENDING = {"commit", "rollback"}  # of a driver's connection
NOT_OURS = ("alembic/", "testing/", "tools/cli/")  # programs, or code that they call

#: Sent over the connection from ``asking()``, or over an idle connection of the pool.
QUESTIONS = (
    "claims/sessions.py:_view_names",
    "dialects/innodb_tables.py:check_view",
    "dialects/isolation.py:note_default_level",
    "dialects/innodb.py:InnoDBLocks.note_server",
    "dialects/innodb_tables.py:engine_in_schema",
    "dialects/mssql.py:SQLServerLocks.note_server",
    "dialects/mssql.py:SQLServerWaits._restores_timeout",
    "dialects/mysql.py:MySQLLocks.storage_engine",
    "dialects/postgresql/__init__.py:PostgreSQLLocks.note_server",
    "features/commit_lookup.py:_can_ask",
    *(
        f"dialects/{name}.longest"
        for name in (
            "innodb.py:InnoDBWaits",
            "mssql.py:SQLServerWaits",
            "postgresql/limits.py:PostgreSQLWaits",
        )
    ),
    "tools/doctor/every_database.py:isolation_level",
)
#: These send the questions and restore the connection.
ASKING = (
    "dialects/connection.py:ask_driver",
    "dialects/postgresql/__init__.py:_rolled_back",
)
#: Sent over a connection that the doctor, the diagnosis or explain_lock() opened.
BESIDE_THE_POOL = (
    "dialects/innodb.py:InnoDBMonitoring.connections",
    "dialects/innodb.py:InnoDBMonitoring.holders",
    "dialects/mariadb.py:MariaDBMonitoring.waits",
    "dialects/mssql.py:SQLServerMonitoring.connections",
    "dialects/mssql.py:SQLServerMonitoring.holders",
    "dialects/mssql.py:SQLServerMonitoring.waits",
    "dialects/mariadb.py:_row_waits",
    "dialects/mysql.py:MySQLMonitoring.waits",
    "dialects/mysql.py:_row_waits",
    "dialects/mysql.py:_connections_of",
    "dialects/postgresql/monitoring.py:_query",
    "tools/doctor/check.py:Subject.ask",
    "tools/doctor/check.py:Subject.rows",
    "tools/doctor/checkouts.py:clocks_apart",
    "tools/doctor/__init__.py:findings_of",
    "tools/doctor/postgresql_poolers.py:_is_pgpool",
    "tools/doctor/postgresql_poolers.py:_pid",
    "tools/doctor/postgresql_poolers.py:_servers",
    "tools/explain/__init__.py:_PlanRecorder._send_unlocked",
    "tools/explain/__init__.py:_lock",
    "tools/explain/__init__.py:_some_key",
    "tools/explain/__init__.py:_some_unique_key",
    "features/diagnosis.py:_holders",
    "dialects/postgresql/commit_outcome.py:PostgreSQLCommitOutcomes.outcome",
    "features/diagnosis.py:SharedQueries._answer",
)
#: The lock: begins its transaction, limits its wait, takes it, or makes it a deadlock victim.
#: These read no system table.
LOCKS = (
    "dialects/connection.py:connection_setting",
    "dialects/innodb.py:InnoDBLocks.begin",
    "dialects/innodb.py:InnoDBHoldLimit.limit",
    "dialects/innodb.py:InnoDBIsolation.set_once",
    "dialects/innodb_named_locks.py:InnoDBNamedLocks._take_name",
    "dialects/mssql.py:BeginsAtOnce.begun",
    "dialects/mssql.py:SQLServerWaits.lower_deadlock_priority",
    "dialects/mssql.py:SQLServerNamedLocks.take",
    "dialects/mssql.py:_lock_timeout",
    "dialects/postgresql/__init__.py:PostgreSQLLocks.begin",
    "dialects/postgresql/limits.py:PostgreSQLHoldLimit.limit",
    "dialects/postgresql/named_locks.py:lock_key",
    "dialects/postgresql/limits.py:limited_block",
    "dialects/postgresql/limits.py:limited_locks.before_cursor_execute",
    "dialects/postgresql/limits.py:limited_locks.restore",
    "dialects/postgresql/pipeline.py:Unread.__call__",
    "dialects/sqlite.py:SQLiteLocks._go_on",
    "dialects/sqlite.py:SQLiteLocks._send_begin",
    "dialects/sqlite.py:SQLiteLifecycle.before_savepoint",
    "dialects/sqlite.py:_limited",
    "dialects/sqlite.py:_send_limited",
    "dialects/sqlite.py:_excludes_others",
    "dialects/sqlite.py:_limit",
    "dialects/sqlite.py:_takes_write_lock",
    "dialects/sqlite.py:_take_write_lock",
    "dialects/sqlite.py:_write_user_version",
)
#: About the connection or transaction of a lock, and only it can answer: next to the lock, or
#: after it fails.
OF_THE_CONNECTION = (
    "dialects/cluster.py:GroupReplication.find_abort",
    "dialects/innodb.py:SessionIsolation.ask_level",
    "dialects/innodb.py:InnoDBMarks.current_schema",
    "dialects/innodb.py:InnoDBStatus.has_open_transaction",
    "dialects/mssql.py:SQLServerLifecycle.before_rollback",
    "dialects/mssql.py:SQLServerLocks._refuse_read_only",
    "dialects/mssql.py:SQLServerMarks.current_schema",
    "dialects/mssql.py:SQLServerMarks.has_mark",
    "dialects/mssql.py:SQLServerMarks.mark_transaction",
    "dialects/mssql.py:SQLServerMonitoring.connection_id",
    "dialects/isolation.py:IsolationLevels.ask_level",
    "dialects/postgresql/__init__.py:PostgreSQLMarks.current_schema",
    "dialects/postgresql/__init__.py:_answer",
    "dialects/postgresql/__init__.py:PostgreSQLLocks.hides_rows",
    "dialects/postgresql/lockable_rows.py:_check_below",
    "dialects/postgresql/lockable_rows.py:check_rows",
    "dialects/transactions.py:_send",
    "features/commit_lookup.py:CommitLookup._learn",
)
#: The end of a transaction that the session began, or that the server ended.
ENDS = (
    "claims/transaction.py:ClaimTransaction._roll_back_block",
    "dialects/cluster.py:Galera.listeners.before_rollback",
    "dialects/sqlite.py:SQLiteLifecycle.commit_failed",
    "features/batch.py:BatchPriority._undone_by_savepoint",
    "features/commit_lookup.py:do_commit",
    "features/gate/combined_turn.py:Turn._check",
    "pool/on_return.py",
    "pool/on_return.py:_execute",
    "pool/reset.py:_roll_back_unless_ended",
    "core/transaction/failure.py:FailingTransaction._refuse_connection_commit",
    "core/transaction/lock_transaction.py:LockTransaction.before_own_commit",
    "features/hold_limit.py:_roll_back",
    "session/locking_session.py:_commit_in_blocks",
)
#: Rows of the documents, read in the transaction that locks or writes them.
DOCUMENTS = (
    "claims/each.py:Claims._lock_rows",
    "claims/leases.py:Leases._take",
    "claims/claim_each.py:Groups.first",
    "claims/sessions.py:ClaimSessions.read",
    "core/documents/stored_keys.py:ask",
    "adoption/changed_rows.py:_read_now",
    "core/locking/read_by_key.py:find_again",
    "claims/query.py:_refuse_hidden",
    "core/session/lock_methods.py:LockMethods._get_by_key",
    "versions.py:_owner_of_new_kind",
    "versions.py:_update",
    "versions.py:raise_versions",
    "guard/statement_check.py:StatementCheck._lock_free",
    "core/locking/locked_rows.py:LockedRows.lock_keys.keys_of",
    "core/locking/locked_rows.py:objects_of",
    "core/loading/load_parts.py:_Loader._read_again",
    "core/loading/load_parts.py:_load_collections",
    "core/loading/load_parts.py:read_details",
    "session/block_methods.py:BlockMethods._take_selected",
)
#: Rows of the table of check-outs, read and written in the transaction of the lock or the change.
CHECKOUTS = (
    "features/checkouts/atomic.py:_locked",
    "features/checkouts/table_rows.py:CheckoutRows._write",
    "features/checkouts/table_rows.py:CheckoutRows.insert",
    "features/checkouts/table_rows.py:CheckoutRows.read",
    "features/checkouts/table_rows.py:CheckoutRows.read_one",
    "features/checkouts/table_rows.py:CheckoutRows.select_open",
)
#: Passes on a statement of the program.
PROGRAMS = (
    "dialects/postgresql/deferred_writes.py:PsycopgPipeline._raise",
    "dialects/postgresql/deferred_writes.py:PsycopgPipeline.execute",
    "dialects/postgresql/deferred_writes.py:PsycopgPipeline.executemany",
    "dialects/postgresql/pipeline.py:InterceptedCursor.execute",
    "dialects/postgresql/pipeline.py:InterceptedCursor.executemany",
    "dialects/postgresql/pipelined_lock.py:PipelinedLock.__exit__",
    "core/session/execute.py:ExecutingSession._execute_locked",
    "core/session/execute.py:ExecutingSession._execute_other",
    "core/session/execute.py:ExecutingSession.execute",
    "core/session/execute.py:ExecutingSession.scalar",
    "core/session/execute.py:ExecutingSession.scalars",
    "core/session/execute.py:_after_listeners",
)
LISTED = (
    *(*QUESTIONS, *ASKING, *BESIDE_THE_POOL, *LOCKS),
    *(*OF_THE_CONNECTION, *ENDS, *DOCUMENTS, *CHECKOUTS, *PROGRAMS),
)
#: Dialect methods that may ask over a connection of the program: each begins ``asking()``, or
#: opens another connection.
GIVEN_THE_PROGRAMS: Mapping[str, str] = {
    "dialects/innodb.py:InnoDBLocks._is_lockable": "check_view",
    "dialects/innodb.py:InnoDBLocks.storage_engine": "engine_in_schema",
    "dialects/mssql.py:SQLServerWaits._restores_timeout": "_lock_timeout_in_batch",
    "dialects/mysql.py:MySQLLocks.storage_engine": "ask_driver",
    "dialects/registry.py:strategy_for": "_learn",
}


@pytest.fixture(scope="module")
def functions() -> Functions:
    """Return every function of the package with its name; a module stands for its top-level code."""
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    return [
        function
        for module, path in paths.items()
        if not module.startswith(NOT_OURS)
        for function in _functions(module, [], ast.parse(path.read_text(encoding="utf-8")))
    ]


def _functions(module: str, scope: list[str], node: ast.AST) -> Iterator[Function]:
    within = _walk(node)
    yield ":".join(filter(None, (module, ".".join(scope)))), within
    for inner in within:
        if isinstance(inner, SCOPES):
            yield from _functions(module, [*scope, inner.name], inner)


def _walk(node: ast.AST) -> list[ast.AST]:
    """Return the nodes of this function, without nested functions."""
    found = [*ast.iter_child_nodes(node)]
    for inner in found:  # grows during the loop
        if not isinstance(inner, SCOPES):
            found.extend(ast.iter_child_nodes(inner))
    return found


def _sends(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "execute":
        return ast.unparse(node) == "super().execute"  # passed on, to be called later
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    owner, _, last = name.rpartition(".")
    of_driver = last in ENDING and not owner.startswith(("self", "super()", "session"))
    return last in SENDING or (bool(owner) and of_driver)


def test_each_place_is_listed_with_its_reason(functions: Functions) -> None:
    found = sorted(name for name, within in functions if any(map(_sends, within)))
    assert found == sorted(LISTED)


def _asks_elsewhere(block: ast.withitem) -> bool:
    call = ast.unparse(block.context_expr)
    return ".asking(" in call or ".asking_schema(" in call or call.startswith("other_connection(")


def test_who_is_given_a_connection_of_the_program_asks_elsewhere(functions: Functions) -> None:
    for name, within in functions:
        if name not in GIVEN_THE_PROGRAMS:
            continue
        blocks = [one for one in within if isinstance(one, ast.With)]
        asking = [one for one in blocks if _asks_elsewhere(one.items[-1])]
        assert any(GIVEN_THE_PROGRAMS[name] in ast.unparse(block) for block in asking), name
