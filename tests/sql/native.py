"""The errors of SQL Server, in the shape that each driver gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.sql.servers import Error, OperationalError, ProgrammingError

TEXTS: Mapping[int, str] = {
    300: "VIEW SERVER STATE permission was denied on object 'server', database 'master'.",
    1205: "Transaction (Process ID 52) was deadlocked on lock resources with another process and "
    "has been chosen as the deadlock victim. Rerun the transaction.",
    1222: "Lock request time out period exceeded.",
    2627: "Violation of PRIMARY KEY constraint. Cannot insert duplicate key. "
    "The duplicate key value is ((1205)).",
    3903: "The ROLLBACK TRANSACTION request has no corresponding BEGIN TRANSACTION.",
    3951: "Transaction failed in database 'shop' because the statement was run under snapshot "
    "isolation but the transaction did not start in snapshot isolation.",
    3952: "Snapshot isolation transaction failed accessing database 'shop' because snapshot "
    "isolation is not allowed in this database.",
    3953: "Snapshot isolation transaction failed in database 'shop' because the database was not "
    "recovered when the current transaction was started.",
    3954: "Snapshot isolation transaction failed to start in database 'shop' because the ALTER "
    "DATABASE command that disallows snapshot isolation had started before this transaction began.",
    3956: "Snapshot isolation transaction failed to start in database 'shop' because the ALTER "
    "DATABASE command which enables snapshot isolation has not finished yet.",
    3960: "Snapshot isolation transaction aborted due to update conflict.",
}


def odbc18(number: int) -> Error:
    """What pyodbc raises with Microsoft's ODBC Driver 18; 1205 has a class and state of its own."""
    kind, state = (Error, "40001") if number == 1205 else (ProgrammingError, "42000")
    driver = "[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
    return kind(state, f"[{state}] {driver}{TEXTS[number]} ({number}) (SQLExecDirectW)")


def odbc18_with_more(number: int) -> Error:
    """The same, where the server has sent a second message behind the error."""
    state, text = odbc18(number).args
    more = "[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]The statement has been terminated"
    return ProgrammingError(state, f"{text}; [01000] {more}. (3621)")


def freetds(number: int) -> Error:
    """What pyodbc raises with FreeTDS: one class for all."""
    text = f"[42000] [FreeTDS][SQL Server]{TEXTS[number]} ({number}) (SQLExecDirectW)"
    return ProgrammingError("42000", text)


def pymssql(number: int) -> Error:
    """What pymssql raises: the number itself, and bytes."""
    text = f"{TEXTS[number]}DB-Lib error message 20018, severity 16:\nGeneral SQL Server error"
    return OperationalError(number, text.encode())


FORMS: Mapping[str, Callable[[int], Error]] = {
    "odbc18": odbc18,
    "odbc18_with_more": odbc18_with_more,
    "freetds": freetds,
    "pymssql": pymssql,
}
