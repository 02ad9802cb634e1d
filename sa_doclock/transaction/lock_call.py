"""One call for a lock, from its start to the grant or the failure."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from ..errors import DocLockError, LockFailed, LockNotAvailable
from ..events import RequestedLock, listened
from ..lock_info import DocumentKey, LockedName
from ..monitoring import instrumentation
from .request import LockRequest, add_document, reason
from .state import TransactionState

_log = logging.getLogger("sa_doclock")


class LockCall:
    """The state of one call: its request, its start, and the error that it has met.

    It is the state's ``call`` until :meth:`granted` or :meth:`failed`, so that the errors of the
    session's connections are translated in its words.
    """

    met: BaseException | None = None
    """The translated error that the call has met at the server."""

    engine: Engine | None = None
    """The engine whose server has refused."""

    undone_by_savepoint = False
    """True if a savepoint undoes what the attempt under way does."""

    requested: RequestedLock | None = None
    """The request for listeners, where there are any."""

    def __init__(self, state: TransactionState, request: LockRequest) -> None:
        self.request = request
        self.attempt = request
        """The request as the attempt under way makes it: in a batch it does not wait."""
        self.opens = not state.session().in_transaction()
        """True if there was no transaction before the call."""
        if "before_lock" in listened and state.instrumentation.dispatch.before_lock:
            self.requested = state.instrumentation.report_requested(
                RequestedLock(request.entity, request.ident, request.lock, request.seconds)
            )
        state.call = self
        state.ledger.new = []
        self._started = time.monotonic() - state.connections.connecting

    def refused(self, kind: type[LockFailed], database: str) -> LockFailed:
        """Return the error of this call, which the server has refused by value."""
        request = self.request
        error = kind(reason(kind, request))
        add_document(error, request.entity, request.ident, request.lock, database)
        return error

    def is_over(self, state: TransactionState) -> bool:
        """Return whether the call has taken as long as it may wait."""
        seconds = self.request.seconds
        if seconds is None:
            return False
        return time.monotonic() - self._started - state.connections.connecting >= seconds

    def granted(self, state: TransactionState) -> None:
        """End the call: the lock was granted, and is recorded."""
        new, state.ledger.new, state.call = state.ledger.new, None, None
        waited = time.monotonic() - self._started - state.connections.connecting
        # Nobody is told of most locks, which is found out here without a call.
        if (
            self.requested is not None
            or "lock_acquired" in listened
            or state.instrumentation.held_warnings is not None
            or waited >= instrumentation.CONTENDED
            or _log.isEnabledFor(logging.DEBUG)
        ):
            self._report_granted(state, new or (), waited)

    def _report_granted(
        self, state: TransactionState, new: Sequence[DocumentKey | LockedName], waited: float
    ) -> None:
        try:
            state.instrumentation.report_granted(new, self.request.lock, waited)
            self._report_end(state, new, waited, None)
        except BaseException as error:  # a listener's, as an error of the call
            if self.opens:
                state.roll_back_quietly()
            self._report_end(state, new, waited, error)
            raise

    def failed(self, state: TransactionState, error: BaseException) -> None:
        """End the call: undo the transaction that it has opened, or refuse all that follows."""
        waited = time.monotonic() - self._started - state.connections.connecting
        state.ledger.new = state.call = None
        try:
            self._undo_and_report(state, error, waited)
        finally:
            self._report_end(state, (), waited, error)

    def _undo_and_report(
        self, state: TransactionState, error: BaseException, waited: float
    ) -> None:
        if self.opens:
            state.roll_back_quietly()
        elif self._is_failure_of_lock(error):
            state.failure.refuse_from_now_on(error)
        if isinstance(error, LockFailed):
            error.waited = waited
            if state.diagnosis is not None and isinstance(error, LockNotAvailable):
                # By now this session waits for nobody.
                state.diagnosis.add_blockers(error, self.request.keys, self.engine)
            state.instrumentation.report_failed(error, waited, self.request.seconds)

    def _report_end(
        self,
        state: TransactionState,
        granted: Sequence[DocumentKey | LockedName],
        waited: float,
        error: BaseException | None,
    ) -> None:
        """Report the end to the listeners of ``after_lock``, once."""
        requested, self.requested = self.requested, None
        if requested is not None:
            state.instrumentation.report_ended(requested, granted, waited, error)

    def _is_failure_of_lock(self, error: BaseException) -> bool:
        """Return whether nobody knows any more what the transaction holds."""
        if isinstance(error, DBAPIError) or not isinstance(error, Exception):
            return True
        # After another try, which was granted, an error of ours is a misuse like any other.
        return self.met is not None and (self.met is error or not isinstance(error, DocLockError))
