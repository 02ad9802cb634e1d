"""The errors of SQL Server that the tests simulate ("Database Engine events and errors")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.tds.tokens import Value
from tests.sql.driver import MISSING, NOTHING, columns_of
from tests.sql.native import TEXTS as TEXTS_OF_NATIVE

#: These end the transaction. Any other error does too if XACT_ABORT is ON.
FATAL = frozenset({245, 1205, 3609, 3616, 3951, 3958, 3960, 3961, 3966, 3998})
TEXTS = {
    **TEXTS_OF_NATIVE,
    226: "ALTER DATABASE statement not allowed within multi-statement transaction.",
    245: "Conversion failed when converting the varchar value 'x' to data type int.",
    628: "Cannot issue SAVE TRANSACTION when there is no active transaction.",
    3906: "Failed to update database 'shop' because the database is read-only.",
    3902: "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION.",
    6401: "Cannot roll back sa_savepoint_1. No transaction or savepoint of that name was found.",
    5011: "User does not have permission to alter database 'shop'.",
}


class Refused(Exception):
    """An error as the server's answer, not a fault of the test server."""

    def __init__(self, number: int) -> None:
        super().__init__(number, TEXTS[number])
        self.number = number


# --------------------------------------------------------------------------------------------------
# The answers to a statement: rows, or only its completion.

_EMPTY = (  # nobody else holds a lock, and no migration has run
    *("dm_tran_database_transactions", "dm_tran_locks", "dm_os_waiting_tasks"),
    *("INFORMATION_SCHEMA", "sys.objects", "FROM sa_doclock_version"),
)
_OF_DATABASE = ("name", "snapshot_isolation_state", "is_read_committed_snapshot_on")
_CONTENT: dict[str, Value] = {"kind": "lease", "name": "Ann"}
VERSION = "Microsoft SQL Server 2022 - 16.0.4135.4 (X64)"
_HANDSHAKE: dict[str, Value] = {
    "ProductVersion": "16.0.4135.4",
    "@@version": VERSION,
    "schema_name()": "dbo",
    "test max support": "x",
    "fn_listextendedproperty": 1,
    "sys.system_views": "dm_exec_sessions",
    "SELECT @@SPID": 51,
}


@dataclass(frozen=True)
class Rows:
    names: Sequence[str]
    rows: Sequence[Sequence[Value]]


@dataclass(frozen=True)
class Ended:
    """Report the end of a statement without rows, optionally with the number of changed rows."""

    count: int | None = None


class Called(Ended):
    """Report the end of a procedure that the batch called."""


def of_the_server(sql: str, live: Mapping[str, Value], snapshot: int) -> Rows | None:
    """Answer a question about the server, the database or the session; None if it is not such a question.

    :param live: the current answers, by a marker in the SQL.
    """
    if "FROM sys.databases" in sql:
        return Rows(_OF_DATABASE, [["shop", snapshot, 0]])
    if any(name in sql for name in _EMPTY):
        return Rows(["session_id"], [])
    marks = {**_HANDSHAKE, **live}
    found = [Rows(["answer"], [[value]]) for mark, value in marks.items() if mark in sql]
    return found[0] if found else None


def of_a_table(sql: str, values: Sequence[object]) -> Rows:
    """Answer with one row, because every table has one, or with none if the query asks for none."""
    names = columns_of(sql)
    empty = MISSING in values or NOTHING.search(sql)
    content = {**_CONTENT, "kind": "fault"} if "shop_ticket" in sql else _CONTENT
    return Rows(names, [] if empty else [[content.get(name, 1) for name in names]])
