"""One transaction with the rows that it has locked, from the lock to the commit."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Generic, TypeVar

from sqlalchemy.orm import SessionTransaction

from ..lock_info import Identity
from ..session import LockingSession
from .claim import Claim
from .report import Tally

T = TypeVar("T")
_log = logging.getLogger("sa_doclock")


class Turn(Generic[T]):
    """The claims of one transaction: one, or a batch, each of whose blocks has a savepoint.

    :param transaction: of the session, opened and entered.
    """

    def __init__(
        self,
        session: LockingSession,
        transaction: SessionTransaction,
        rows: Mapping[Identity, T],
        tally: Tally,
        *,
        savepoints: bool,
        collect: bool,
    ) -> None:
        self.session, self._transaction = session, transaction
        self._to_come = deque(rows.items())
        self._tally, self._savepoints, self._collect = tally, savepoints, collect
        self.waiting: Claim[T] | None = None  # came up, and may be entered
        self._coming: Identity = ()  # its key
        self.entered = self.closed = self._last = False
        self._savepoint: SessionTransaction | None = None
        self._done: list[Identity] = []  # their blocks have ended well
        self._broken: BaseException | None = None  # what has undone the whole transaction
        self._committed = False
        session.on_commit(self._note_commit)

    def next(self) -> Claim[T] | None:
        """Let the next row come up; None, and the transaction is over, when there is none.

        :raises Exception: the commit has failed, unless failures are collected.
        """
        if self.waiting is not None:
            self.waiting = None
            self._tally.given_back([self._coming])
        if not self._to_come:
            self.end()
            return None
        self._coming, row = self._to_come.popleft()
        self.waiting = Claim(self, self._coming, row)
        return self.waiting

    def rest(self) -> list[Identity]:
        """What has not come up; it is not locked any more when the transaction is over."""
        return [identity for identity, _ in self._to_come]

    def enter(self, identity: Identity) -> None:
        """The block of this row begins."""
        self.waiting, self.entered = None, True
        if self._savepoints:
            try:
                self._savepoint = self.session.begin_nested()
            except BaseException as error:
                self.leave(identity, error)
                raise

    def leave(self, identity: Identity, raised: BaseException | None) -> bool:
        """The block has ended; say whether what it raised is kept for the report."""
        self.entered = False
        if self.session.get_transaction() is not self._transaction:
            error = self._leave_ended(identity, raised)
        else:
            error = raised or self._release()
            if error is None:
                self._done.append(identity)
            else:
                self._tally.failed([identity], error)
                self._undo(error)
            if self._last or not self._to_come or not self._goes_on(error):
                failure = self._finish()
                if error is not None and failure is not None:
                    _log.error("claim_each: a commit failed after a block had", exc_info=failure)
                error = error or failure
        if error is None or error is raised:
            return raised is not None and self._keeps(error)
        if not self._keeps(error):
            raise error
        return False

    def end(self) -> None:
        """Commit what was done and let go of the rest; after the block, if one is entered.

        :raises Exception: the commit has failed, unless failures are collected.
        """
        if self.entered:
            self._last = True
        elif not self.closed:
            if self.waiting is not None:
                self.waiting = None
                self._tally.given_back([self._coming])
            error = self._finish()
            if error is not None and not self._keeps(error):
                raise error

    def end_quietly(self) -> None:
        """The same when nobody is there to be told but the report and the log."""
        quietly(self.end)

    def _keeps(self, error: BaseException | None) -> bool:
        return self._collect and isinstance(error, Exception)

    def _goes_on(self, error: BaseException | None) -> bool:
        return error is None or (self._keeps(error) and self._broken is None)

    def _release(self) -> BaseException | None:
        try:
            if self._savepoint is not None:
                self._savepoint.commit()
        except BaseException as error:  # noqa: BLE001  # told by leave()
            return error
        return None

    def _undo(self, error: BaseException) -> None:
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is None:
            self._broken = error
            return
        try:
            savepoint.rollback()
        except BaseException as failure:
            self._broken = error  # the server has undone it all, or is gone
            if not isinstance(failure, Exception):
                self._finish()
                raise

    def _leave_ended(self, identity: Identity, error: BaseException | None) -> BaseException | None:
        """The block itself has called commit() or rollback()."""
        if self._committed:
            self._tally.processed(self._done)
            if error is None:
                self._tally.processed([identity])
            else:
                self._tally.afterwards([identity], error)
        else:
            self._tally.given_back(self._done)
            if error is None:
                self._tally.given_back([identity])
            else:
                self._tally.failed([identity], error)
        self._close()
        return error

    def _finish(self) -> BaseException | None:
        """End the transaction; return what has failed, which the report has already."""
        done, self._done = self._done, []
        try:
            if done and self._broken is None:
                # Not left to the block's end, which commits nothing, and says nothing, where a
                # flush has failed and the program has swallowed the error.
                self._transaction.commit()
                self._tally.processed(done)
            elif self._broken is not None:
                self._tally.failed(done, self._broken)
        except BaseException as error:  # noqa: BLE001  # told by the callers
            (self._tally.afterwards if self._committed else self._tally.failed)(done, error)
            return error
        finally:
            self._close()
        return None

    def _close(self) -> None:
        self.closed = True
        self._broken = None  # whose traceback may lead to whoever has this
        with suppress(Exception):  # whatever it meets, the connection is given up
            self.session.rollback()
        with suppress(Exception):
            self._transaction.__exit__(None, None, None)
        with suppress(Exception):
            self.session.close()

    def _note_commit(self) -> None:
        self._committed = True


def quietly(end: Callable[[], None]) -> None:
    """End something when nobody is there to be told but the report and the log."""
    try:
        end()
    except Exception:  # noqa: BLE001  # told by the report
        _log.exception("claim_each: what was done could not be committed")
