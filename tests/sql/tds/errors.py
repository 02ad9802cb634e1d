"""The errors of SQL Server that the tests play ("Database Engine events and errors")."""

from __future__ import annotations

from tests.sql.native import TEXTS as TEXTS_OF_NATIVE

#: The transaction does not survive these, nor any other where XACT_ABORT is ON.
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
    """The server's error: an answer, no fault of ours."""

    def __init__(self, number: int) -> None:
        super().__init__(number, TEXTS[number])
        self.number = number
