"""The errors of SQL Server that the tests play ("Database Engine events and errors")."""

from __future__ import annotations

from tests.sql.native import TEXTS as TEXTS_OF_NATIVE

#: The transaction does not survive these.
FATAL = frozenset({1205, 3951, 3960})
TEXTS = {
    **TEXTS_OF_NATIVE,
    226: "ALTER DATABASE statement not allowed within multi-statement transaction.",
    650: "You can only specify the READPAST lock in the READ COMMITTED or REPEATABLE READ "
    "isolation levels.",
    3902: "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION.",
    5011: "User does not have permission to alter database 'shop'.",
}


class Refused(Exception):
    """The server's error: an answer, no fault of ours."""

    def __init__(self, number: int) -> None:
        super().__init__(number, TEXTS[number])
        self.number = number
