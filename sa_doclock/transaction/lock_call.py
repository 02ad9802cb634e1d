"""One call for a lock, from its start to the grant or the failure."""

from __future__ import annotations

import time

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from ..errors import DocLockError, LockFailed, LockNotAvailable
from .messages import add_document, reason
from .request import LockRequest
from .state import TransactionState


class LockCall:
    """The state of one call: its request, its start, and the error that it has met.

    It is the state's ``call`` until :meth:`granted` or :meth:`failed`, so that the errors of the
    session's connections are translated in its words.
    """

    __slots__ = (
        "_opens",
        "_started",
        "attempt",
        "engine",
        "met",
        "request",
        "undone_by_savepoint",
    )

    def __init__(self, state: TransactionState, request: LockRequest) -> None:
        self.request = request
        self.attempt = request
        """The request as the attempt under way makes it: in a batch it does not wait."""
        self.met: BaseException | None = None
        """The translated error that the call has met at the server."""
        self.engine: Engine | None = None
        """The engine whose server has refused."""
        self.undone_by_savepoint = False
        """True if a savepoint undoes what the attempt under way does."""
        self._opens = not state.session().in_transaction()
        state.call = self
        state.ledger.new = []
        self._started = time.monotonic()

    def refused(self, kind: type[LockFailed], database: str) -> LockFailed:
        """Return the error of this call, which the server has refused by value."""
        request = self.request
        error = kind(reason(kind, request))
        add_document(error, request.entity, request.ident, request.lock, database)
        return error

    def granted(self, state: TransactionState) -> None:
        """End the call: the lock was granted, and is recorded."""
        new, state.ledger.new, state.call = state.ledger.new, None, None
        try:
            waited = time.monotonic() - self._started
            state.instrumentation.report_granted(new or (), self.request.lock, waited)
        except BaseException:  # a listener's, as an error of the call
            if self._opens:
                state.roll_back_quietly()
            raise

    def failed(self, state: TransactionState, error: BaseException) -> None:
        """End the call: undo the transaction that it has opened, or refuse all that follows."""
        waited = time.monotonic() - self._started
        state.ledger.new = state.call = None
        if self._opens:
            state.roll_back_quietly()
        elif self._is_failure_of_lock(error):
            state.failure.refuse_from_now_on(error)
        if isinstance(error, LockFailed):
            error.waited = waited
            if state.diagnosis is not None and isinstance(error, LockNotAvailable):
                # By now this session waits for nobody.
                state.diagnosis.add_blockers(error, self.request.keys, self.engine)
            state.instrumentation.report_failed(error, waited)

    def _is_failure_of_lock(self, error: BaseException) -> bool:
        """Return whether nobody knows any more what the transaction holds."""
        if isinstance(error, DBAPIError) or not isinstance(error, Exception):
            return True
        # After another try, which was granted, an error of ours is a misuse like any other.
        return self.met is not None and (self.met is error or not isinstance(error, DocLockError))
