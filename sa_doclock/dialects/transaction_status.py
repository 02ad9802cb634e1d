"""The connection's own word about its transaction, which costs nothing.

It may miss that one transaction has ended and another begun.  The ledger is compared with it before a
lock, a flush and a commit, after each error, and after each statement on a Connection that the program
has in hand.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import Connection

from .error_codes import NativeCode


class TransactionStatus:
    """The state of a transaction, as the driver knows it.  Here nothing is known.

    Of an open transaction, False: it has ended, and its locks are gone; then the session refuses to
    write.  None: nobody can tell.  Asked only where a lock or a savepoint has been sent, so that
    there must be a transaction.
    """

    lock_needs_transaction: ClassVar[bool] = False
    """A lock that was granted while ``in_transaction()`` is False has ended with its statement."""

    reports_idle: ClassVar[bool] = False
    """Some driver sends a ROLLBACK also where no transaction is open, and ``is_idle()`` can tell."""

    def in_transaction(self, connection: Connection) -> bool | None:
        """Return whether the driver knows a transaction to be open; nothing is sent.

        The answer must be right at any time.  What is known after a statement or an error alone
        belongs into the two methods below.
        """
        return None

    def in_transaction_after(
        self, connection: Connection, cursor: Any, statement: str
    ) -> bool | None:
        """Return the same just after this statement has succeeded; nothing is sent.

        Override it where the driver keeps the status of some answers only.
        """
        return self.in_transaction(connection)

    def in_transaction_after_error(
        self, connection: Connection, statement: str, code: NativeCode | None
    ) -> bool | None:
        """Return the same just after this statement has failed; here the server may be asked.

        Of statements that SQLAlchemy has built, ``in_transaction()`` is asked instead.  A question
        goes over ``connection.connection.cursor()``, so that its error is none of the session; an
        error that comes out of here is taken for None.  Codes in ``rolls_back_transaction`` are not
        asked about.
        """
        return self.in_transaction(connection)

    def has_open_transaction(self, connection: Connection) -> bool | None:
        """Return whether a transaction is open; the server may be asked; None: nobody can tell."""
        return self.in_transaction(connection)

    def is_aborted(self, connection: Connection) -> bool | None:
        """Return whether an error has aborted the transaction; None: the driver cannot tell.

        Asked where ``aborts_on_error``.
        """
        return None

    def is_idle(self, dbapi_connection: Any) -> bool:
        """Return whether the server's answer to COMMIT or ROLLBACK says: no transaction is open.

        False: it does not, or the driver cannot tell.
        """
        return False
