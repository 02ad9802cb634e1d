"""The connection's own report about its transaction, which costs nothing.

It may miss that one transaction has ended and another begun.  The ledger is compared with it before
a lock, a flush and a commit, after each error, and after each statement on a Connection that the
program may use directly.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection


class TransactionStatus:
    """The state of a transaction, as the driver knows it.  By default nothing is known.

    False: an open transaction has ended, and its locks are gone; then the session refuses to write.
    None: unknown.  Called only after a lock or a savepoint was sent, so that there must be a
    transaction.
    """

    def in_transaction(self, connection: Connection, cursor: Any = None) -> bool | None:
        """Return whether the driver knows a transaction to be open; sends nothing.

        The answer must be right at any time.  A lock that was granted while this is False has ended
        already.

        :param cursor: of the statement that has just succeeded, if a driver keeps the status of
            some answers only; None: the last answer may be any.
        """
        return None

    def has_open_transaction(self, connection: Connection) -> bool | None:
        """Return whether a transaction is open, which can execute a question to the server; None: unknown.

        A question uses ``connection.connection.cursor()``, so that its error is not the session's.
        Called also after a statement of the program has failed: an error counts as None.
        """
        return self.in_transaction(connection)

    def is_aborted(self, connection: Connection) -> bool | None:
        """Return whether an error has aborted the transaction; None: the driver cannot tell.

        Called if ``ErrorCodes.every_error`` is ABORTS.
        """
        return None

    def is_idle(self, dbapi_connection: Any) -> bool:
        """Return whether the server's answer to COMMIT or ROLLBACK says that no transaction is open.

        False: it does not, or the driver cannot tell.  Override it if some driver sends a ROLLBACK
        even without an open transaction.
        """
        return False
