"""The cluster that a server is a node of, which a dialect may leave out."""

from __future__ import annotations

from sqlalchemy import Connection


class Cluster:
    """A cluster whose other nodes may end a transaction of this one.

    :ivar name: what a warning calls it, where other nodes take writes too and do not know the locks
        of this one; None where this node alone takes writes.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name

    def before_rollback(self, connection: Connection) -> None:
        """Take the error that a ROLLBACK would meet."""

    def before_savepoint(self, connection: Connection) -> None:
        """Send a statement that fails where the server has ended the transaction.

        Called in front of a SAVEPOINT, where locks are held: it may begin another transaction without
        an error.
        """
