"""One call for a lock, while it is under way."""

from __future__ import annotations

from sqlalchemy import Engine

from ...errors import LockFailed, UnsavedChanges
from ...events import RequestedLock
from ..lock_info import DocumentKey, LockedName
from .request import LockRequest, add_document, reason

Outer = tuple["LockCall | None", "list[DocumentKey | LockedName] | None"]


class LockCall:
    """The state of one call: its request, its start, and the error that it has met.

    It is the session's ``call`` until the lock is granted or has failed, so that the errors of the
    session's connections are translated in its words.

    :ivar started: by the clock of the session, which stands still while it connects.
    :ivar outer: the call of which a listener has made this one, and what that was granted so far.
    :ivar opens: there was no transaction before the call.
    """

    met: BaseException | None = None
    """The translated error that the call has met at the server."""

    engine: Engine | None = None
    """The engine whose server has refused."""

    undone_by_savepoint = False
    """True if a savepoint undoes what the try under way does."""

    requested: RequestedLock | None = None
    """The request for listeners, where there are any."""

    unsaved: UnsavedChanges | None = None
    """The error of some of its rows, to be raised when the others are recorded and reported."""

    def __init__(self, request: LockRequest, started: float, outer: Outer, *, opens: bool) -> None:
        self.request = request
        self.started = started
        self.outer = outer
        self.opens = opens

    def refused(self, kind: type[LockFailed], database: str) -> LockFailed:
        """Return the error of this call, which the server has refused by value."""
        request = self.request
        error = kind(reason(kind, request))
        add_document(error, request.entity, request.ident, request.lock, database)
        return error

    def is_over(self, now: float) -> bool:
        """Return whether the call has taken as long as it may wait."""
        seconds = self.request.seconds
        return seconds is not None and now - self.started >= seconds
