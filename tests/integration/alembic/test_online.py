"""Online mode: the statements sent to SQL Server, their order and their transactions."""

from __future__ import annotations

import logging

import pytest
from alembic import op as module_op
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from sa_doclock.alembic import DisableSnapshotIsolationOp, EnableSnapshotIsolationOp
from tests.support.databases import Database

from .scripted import Error, Server, migrating, refusal, serving

OFF, ON, GOING_OFF, GOING_ON = 0, 1, 2, 3
ALLOW_ON = "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON"
ALLOW_OFF = "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION OFF"
WAITS = "waits until every transaction that is open in the database has ended, blocks nobody"
Op = type[EnableSnapshotIsolationOp] | type[DisableSnapshotIsolationOp]
ENABLE, DISABLE = EnableSnapshotIsolationOp, DisableSnapshotIsolationOp


def run(server: Server, operation: Op, **options: bool) -> None:
    with migrating(server) as op:
        op.invoke(operation(**options))


def logged(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "alembic.sa_doclock" and record.levelno >= level
    ]


@pytest.mark.parametrize(
    ("operation", "before", "altered", "after"),
    [(ENABLE, OFF, ALLOW_ON, ON), (DISABLE, ON, ALLOW_OFF, OFF)],
)
def test_asks_first_and_checks_afterwards(
    operation: Op, before: int, altered: str, after: int
) -> None:
    server = Server(snapshot=before)
    run(server, operation)
    short = altered.removeprefix("ALTER DATABASE CURRENT SET ")
    assert server.about_settings() == ["ask", "who", short, "ask"]
    assert server.altered() == [altered]
    assert server.snapshot == after
    assert not server.read_committed_snapshot


def test_the_names_that_a_revision_uses() -> None:
    server = Server()
    with migrating(server) as op, Operations.context(op.get_context()):
        module_op.enable_snapshot_isolation()  # type: ignore[attr-defined]
        module_op.disable_snapshot_isolation()  # type: ignore[attr-defined]
        module_op.enable_snapshot_isolation(  # type: ignore[attr-defined]
            read_committed_snapshot=True
        )
    assert server.altered() == [
        ALLOW_ON,
        ALLOW_OFF,
        "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON WITH NO_WAIT",
        ALLOW_ON,
    ]


@pytest.mark.parametrize(("operation", "state"), [(ENABLE, ON), (DISABLE, OFF)])
def test_sends_nothing_and_commits_nothing_when_it_is_so_already(
    operation: Op, state: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(snapshot=state, read_committed_snapshot=bool(state))
    with migrating(server) as op, caplog.at_level(logging.INFO):
        op.execute("CREATE TABLE version (version_num INT)")
        op.invoke(operation(read_committed_snapshot=True))
        assert server.about_settings() == ["ask"]
        assert server.versions is None, "the migration's transaction was committed"
    name = "ON" if state else "OFF"
    assert logged(caplog) == [
        f"sales: READ_COMMITTED_SNAPSHOT is {name} already",
        f"sales: ALLOW_SNAPSHOT_ISOLATION is {name} already",
    ]


def test_alter_database_runs_in_autocommit() -> None:
    server = Server()
    run(server, ENABLE)
    assert [sent.autocommit for sent in server.sent if sent.sql == ALLOW_ON] == [True]


def test_alter_database_in_the_migrations_transaction_is_error_226() -> None:
    """The counterpart of the test above, which proves nothing unless the model has this rule."""
    with migrating(Server()) as op, pytest.raises(DBAPIError, match="226"):
        op.execute(ALLOW_ON)


@pytest.mark.parametrize("level", ["READ COMMITTED", "SERIALIZABLE"])
@pytest.mark.parametrize("per_migration", [False, True])
def test_the_transaction_is_as_before(level: str, *, per_migration: bool) -> None:
    server = Server(isolation=level)
    with migrating(server, transaction_per_migration=per_migration) as op:
        op.invoke(ENABLE())
        op.execute("CREATE TABLE version (version_num INT)")
        connection = server.connections[-1]
        assert not connection.autocommit
        assert connection.isolation == level
        assert server.versions is None, "what follows is no longer in a transaction"
        op.get_bind().commit()
        assert server.versions == []


def test_an_operation_outside_of_any_transaction_leaves_none_behind() -> None:
    server = Server()
    with migrating(server, begin=False) as op:
        op.invoke(ENABLE())
        assert not op.get_bind().in_transaction()
    assert server.altered() == [ALLOW_ON]


def test_a_transaction_that_alembic_did_not_begin_is_refused() -> None:
    server = Server()
    with serving(server) as engine, engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        with pytest.raises(CommandError, match=r"engine\.connect\(\), not engine\.begin\(\)"):
            op.invoke(ENABLE())
    assert server.altered() == []


def test_within_another_autocommit_block_it_is_refused_for_the_script_would_be_wrong() -> None:
    server = Server()
    refused = pytest.raises(CommandError, match=r"no autocommit_block\(\) around it")
    with migrating(server) as op, op.get_context().autocommit_block(), refused:
        op.invoke(ENABLE())
    assert server.altered() == []


def test_whom_it_waits_for_is_reported_before_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(
        transactions=[(53, "app", "web1", "uvicorn", 340), (61, "report", None, None, 4)]
    )
    with caplog.at_level(logging.INFO):
        run(server, ENABLE)
    assert logged(caplog) == [
        f"{ALLOW_ON}: {WAITS}",
        "in its way: session 53 (login app, host web1, program uvicorn) for 340 s",
        "in its way: session 61 (login report, host None, program None) for 4 s",
        "sales: ALLOW_SNAPSHOT_ISOLATION is ON now",
    ]


def test_without_the_privilege_to_list_sessions_it_still_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    denied = refusal(300, "VIEW SERVER STATE permission was denied on object 'server'.")
    server = Server(refuses={"dm_tran_database_transactions": denied})
    with caplog.at_level(logging.WARNING):
        run(server, ENABLE)
    assert server.snapshot == ON
    [reported] = logged(caplog, logging.WARNING)
    assert reported.startswith("cannot list the sessions in its way")
    assert "VIEW SERVER STATE" in reported


def test_a_lost_connection_is_not_taken_for_a_missing_privilege() -> None:
    lost = refusal(10054, "TCP Provider: connection reset by peer.", sqlstate="08S01")
    server = Server(refuses={"dm_tran_database_transactions": lost})
    with pytest.raises(DBAPIError, match="10054"):
        run(server, ENABLE)
    assert server.altered() == []


def test_a_connection_lost_while_it_waits_is_not_hidden_by_the_clean_up() -> None:
    lost = refusal(10054, "TCP Provider: connection reset by peer.", sqlstate="08S01")
    server = Server(refuses={"ALTER DATABASE": lost})
    with pytest.raises(CommandError, match="10054"):
        run(server, ENABLE)


@pytest.mark.parametrize(("operation", "state"), [(ENABLE, GOING_ON), (DISABLE, GOING_OFF)])
def test_already_on_its_way_it_is_sent_again_so_that_the_migration_waits(
    operation: Op, state: int
) -> None:
    server = Server(snapshot=state)
    run(server, operation)
    assert len(server.altered()) == 1


@pytest.mark.parametrize(
    ("operation", "state", "name"),
    [(ENABLE, GOING_OFF, "IN_TRANSITION_TO_OFF"), (DISABLE, GOING_ON, "IN_TRANSITION_TO_ON")],
)
def test_does_not_quarrel_with_a_session_that_sets_the_opposite(
    operation: Op, state: int, name: str
) -> None:
    server = Server(snapshot=state)
    with pytest.raises(
        CommandError, match=f"sales: ALLOW_SNAPSHOT_ISOLATION is {name}, so another"
    ):
        run(server, operation)
    assert server.about_settings() == ["ask"]


@pytest.mark.parametrize(
    ("operation", "before", "lands_on", "name"),
    [
        (ENABLE, OFF, GOING_ON, "IN_TRANSITION_TO_ON"),
        (ENABLE, OFF, OFF, "OFF"),
        (DISABLE, ON, GOING_OFF, "IN_TRANSITION_TO_OFF"),
    ],
)
def test_another_state_afterwards_is_an_error(
    operation: Op, before: int, lands_on: int, name: str
) -> None:
    server = Server(snapshot=before, lands_on=lands_on)
    with pytest.raises(CommandError, match=f"ALLOW_SNAPSHOT_ISOLATION is {name} after"):
        run(server, operation)


@pytest.mark.parametrize(
    ("setting", "error", "advice"),
    [
        (
            "SET ALLOW_SNAPSHOT_ISOLATION",
            refusal(5061, "ALTER DATABASE failed because a lock could not be placed on 'sales'."),
            "5061, 5070: somebody else has the database locked",
        ),
        (
            "SET READ_COMMITTED_SNAPSHOT",
            refusal(5070, "Database state cannot be changed while other users are using it."),
            "5061, 5070: it needs to be the only connection to the database",
        ),
    ],
)
def test_a_refusal_keeps_the_servers_text_and_says_what_to_do(
    setting: str, error: Error, advice: str
) -> None:
    server = Server(refuses={setting: error})
    with pytest.raises(CommandError) as raised:
        run(server, ENABLE, read_committed_snapshot=True)
    assert error.args[1] in str(raised.value)
    assert advice in str(raised.value)
    assert isinstance(raised.value.__cause__, DBAPIError)
    assert raised.value.__cause__.orig is error


@pytest.mark.parametrize("name", ["master", "model", "msdb", "tempdb"])
@pytest.mark.parametrize("operation", [ENABLE, DISABLE])
def test_a_system_database_is_refused(operation: Op, name: str) -> None:
    server = Server(name=name, snapshot=int(operation is DISABLE))
    with pytest.raises(CommandError, match=f"the system database '{name}'"):
        run(server, operation)
    assert server.about_settings() == ["ask"]


def test_read_committed_snapshot_goes_first_for_it_can_fail_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(sessions=[(70, "dba", "desk", "SSMS", 4000)])
    with caplog.at_level(logging.WARNING):
        run(server, ENABLE, read_committed_snapshot=True)
    assert server.about_settings() == [
        "ask",
        "who",
        "READ_COMMITTED_SNAPSHOT ON WITH NO_WAIT",
        "ask",
        "who",
        "ALLOW_SNAPSHOT_ISOLATION ON",
        "ask",
    ]
    assert server.read_committed_snapshot
    assert logged(caplog) == [
        "in its way: session 70 (login dba, host desk, program SSMS) for 4000 s"
    ]


def test_only_what_is_missing_is_set() -> None:
    server = Server(read_committed_snapshot=True)
    run(server, ENABLE, read_committed_snapshot=True)
    assert server.altered() == [ALLOW_ON]
    run(server, DISABLE, read_committed_snapshot=True)
    assert server.altered()[1:] == [
        "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT OFF WITH NO_WAIT",
        ALLOW_OFF,
    ]
    assert (server.snapshot, server.read_committed_snapshot) == (OFF, False)


def test_disable_leaves_read_committed_snapshot_alone_unless_asked() -> None:
    server = Server(snapshot=ON, read_committed_snapshot=True)
    run(server, DISABLE)
    assert (server.snapshot, server.read_committed_snapshot) == (OFF, True)


@pytest.mark.not_databases("mssql")
def test_not_one_statement_on_another_database(database: Database) -> None:
    sent: list[str] = []

    def record(_1: object, _2: object, statement: str, *_: object) -> None:
        sent.append(statement)

    engine = database.engine()
    with engine.connect() as connection:
        event.listen(engine, "before_cursor_execute", record)
        op = Operations(MigrationContext.configure(connection))
        op.invoke(ENABLE(read_committed_snapshot=True))
        op.invoke(DISABLE(read_committed_snapshot=True))
        assert sent == []
        assert not connection.in_transaction()
        op.execute("SELECT 1")
        assert sent == ["SELECT 1"], "the recorder does not record"
