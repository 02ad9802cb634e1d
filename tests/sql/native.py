"""The errors of SQL Server, as each driver raises them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.sql.servers import Error, OperationalError, ProgrammingError

TEXTS: Mapping[int, str] = {
    262: "VIEW DATABASE STATE permission denied in database 'shop'.",
    297: "The user does not have permission to perform this action.",
    601: "Could not continue scan with NOLOCK due to data movement.",
    650: "You can only specify the READPAST lock in the READ COMMITTED or REPEATABLE READ "
    "isolation levels.",
    651: 'Cannot use the ROW granularity hint on the table "shop_order" because locking at the '
    "specified granularity is inhibited.",
    3961: "Snapshot isolation transaction failed in database 'shop' because the object accessed by "
    "the statement has been modified by a DDL statement in another concurrent transaction since "
    "the start of this transaction.",
    3966: "Transaction is rolled back when accessing version store.",
    8622: "Query processor could not produce a query plan because of the hints defined in this query.",
    3609: "The transaction ended in the trigger. The batch has been aborted.",
    3616: "An error was raised during trigger execution. The batch has been aborted and the user "
    "transaction, if any, has been rolled back.",
    3907: "Transaction aborted when accessing versioned row in table 'shop_order' in database 'shop'. "
    "Requested versioned row was not found because the persistent version store is full.",
    3940: "Failed to acquire necessary locks during commit and the transaction was rolled back.",
    3948: "The transaction was terminated because of the availability replica config/state change or "
    "because ghost records are being deleted on the primary and the secondary availability replica "
    "that might be needed by queries running under snapshot isolation. Retry the transaction.",
    3949: "Transaction aborted when accessing versioned row in table 'shop_order' in database 'shop'. "
    "Requested versioned row was not found because the readable secondary access is not allowed for "
    "the operation that attempted to create the version.",
    3958: "Transaction aborted when accessing versioned row in table 'shop_order' in database "
    "'shop'. Requested versioned row was not found.",
    3998: "Uncommittable transaction is detected at the end of the batch. The transaction is "
    "rolled back.",
    10794: "The table option 'updlock' is not supported with memory optimized tables.",
    13535: "Data modification failed on system-versioned table 'shop.dbo.shop_order' because "
    "transaction time was earlier than period start time for affected records.",
    41332: "Memory optimized tables and natively compiled modules cannot be accessed or created "
    "when the session TRANSACTION ISOLATION LEVEL is set to SNAPSHOT.",
    41368: "Accessing memory optimized tables using the READ COMMITTED isolation level is supported "
    "only for autocommit transactions.",
    300: "VIEW SERVER STATE permission was denied on object 'server', database 'master'.",
    1205: "Transaction (Process ID 52) was deadlocked on lock resources with another process and "
    "has been chosen as the deadlock victim. Rerun the transaction.",
    1204: (
        "The instance of the SQL Server Database Engine cannot obtain a LOCK resource at this time. Rerun "
        "your statement when there are fewer active users."
    ),
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
    """An error of pyodbc with Microsoft's ODBC Driver 18; 1205 has its own class and state."""
    kind, state = (PyodbcError, "40001") if number == 1205 else (PyodbcProgrammingError, "42000")
    driver = "[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
    return kind(state, f"[{state}] {driver}{TEXTS[number]} ({number}) (SQLExecDirectW)")


def odbc18_with_more(number: int) -> Error:
    """The same, if the server sent a second message after the error."""
    state, text = odbc18(number).args
    more = "[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]The statement has been terminated"
    return PyodbcProgrammingError(state, f"{text}; [01000] {more}. (3621)")


def freetds(number: int) -> Error:
    """An error of pyodbc with FreeTDS: one class for all."""
    text = f"[42000] [FreeTDS][SQL Server]{TEXTS[number]} ({number}) (SQLExecDirectW)"
    return PyodbcProgrammingError("42000", text)


def pymssql(number: int) -> Error:
    """An error of pymssql: the number, and the text as bytes."""
    text = f"{TEXTS[number]}DB-Lib error message 20018, severity 16:\nGeneral SQL Server error"
    return PymssqlError(number, text.encode())


def mssql_python(number: int) -> Error:
    """Return the error that mssql-python raises: no number, only the text."""
    text = f"Driver Error: General error; DDBC Error: [Microsoft][SQL Server]{TEXTS[number]}"
    return MSSQLPythonError(text)


class PyodbcError(Error):
    __module__ = "pyodbc"


class PyodbcProgrammingError(ProgrammingError):
    __module__ = "pyodbc"


class PymssqlError(OperationalError):
    __module__ = "pymssql.exceptions"


class MSSQLPythonError(ProgrammingError):
    __module__ = "mssql_python.exceptions"


class MSSQLDatabaseException(Exception):
    """The error of pymssql's lower layer, which its rollback() raises unless the text is English."""

    def __init__(self, number: int) -> None:
        super().__init__("in another language")
        self.number = number


FORMS: Mapping[str, Callable[[int], Error]] = {
    "odbc18": odbc18,
    "odbc18_with_more": odbc18_with_more,
    "freetds": freetds,
    "pymssql": pymssql,
    "mssql_python": mssql_python,
}
