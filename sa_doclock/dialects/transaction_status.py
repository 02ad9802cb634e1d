"""The connection's own word about its transaction, which costs nothing.

It may miss that one transaction has ended and another begun.  The ledger is compared with it before a
lock, a flush and a commit, after each error, and after each statement on a Connection that the program
has in hand.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection


class TransactionStatus:
    """The state of a transaction, as the driver knows it.  Here nothing is known.

    Of an open transaction, False: it has ended, and its locks are gone; then the session refuses to
    write.  None: nobody can tell.  Asked only where a lock or a savepoint has been sent, so that
    there must be a transaction.
    """

    def in_transaction(self, connection: Connection, cursor: Any = None) -> bool | None:
        """Return whether the driver knows a transaction to be open; nothing is sent.

        The answer must be right at any time.  A lock that was granted while this is False has ended
        already.

        :param cursor: of the statement that has just succeeded, where a driver keeps the status of some
            answers alone; None: the last answer may be any.
        """
        return None

    def has_open_transaction(self, connection: Connection) -> bool | None:
        """Return whether a transaction is open, which may take a question to the server; None if nobody can tell.

        A question goes over ``connection.connection.cursor()``, so that its error is none of the
        session.  Called too after a statement of the program has failed: an error counts as None.
        """
        return self.in_transaction(connection)

    def is_aborted(self, connection: Connection) -> bool | None:
        """Return whether an error has aborted the transaction; None: the driver cannot tell.

        Asked where ``ErrorCodes.every_error`` is ABORTS.
        """
        return None

    def is_idle(self, dbapi_connection: Any) -> bool:
        """Return whether the server's answer to COMMIT or ROLLBACK says: no transaction is open.

        False: it does not, or the driver cannot tell.  Override it where some driver sends a ROLLBACK
        also where no transaction is open.
        """
        return False
