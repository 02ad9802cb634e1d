"""Claim and ClaimTransaction: locked rows, from the lock to the commit."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import SessionTransaction

from ..core.session import context_of
from ..errors import LockMisuse
from ..interruptions import ErrorsIgnored
from ..keys import Identity, key_text, public_key
from ..session import LockingSession
from .report import ReportBuilder

T = TypeVar("T")
_log = logging.getLogger("sa_doclock")


class Claim(Generic[T]):
    """A row that is locked now: ``with claim as row:``, once.

    The end of the block commits.  An exception rolls back, and propagates unless claim_each()
    collects errors.  A claim that is not entered is given back when the next one is yielded.

    :ivar key: the primary key: a scalar, or a tuple if it is composite.
    :ivar session: the row's session.  Its transaction is the claim's: flush() and save_changes()
        only flush.  ``commit()`` ends the claim, and SQLAlchemy refuses the rest of the block;
        ``rollback()`` gives the row back.
    """

    def __init__(self, transaction: ClaimTransaction[T], identity: Identity, row: T) -> None:
        self._transaction = transaction
        self._identity = identity
        self._row: T | None = row
        self.key: Any = public_key(identity)
        self.session = transaction.session

    def __enter__(self) -> T:
        row, self._row = self._row, None
        if row is None or self._transaction.offered is not self:
            raise LockMisuse(
                f"the claim of {key_text(self.key)} has ended: enter each claim once, before the loop gives "
                "out the next one"
            )
        self._transaction.enter_block(self._identity)
        return row

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return self._transaction.exit_block(self._identity, error)


class ClaimTransaction(Generic[T]):
    """The claims of one transaction: a single one, or a batch with a savepoint for each block.

    :param transaction: of the session, opened and entered.
    :param rows: the locked rows by key, in the order of the claims.
    :ivar remaining: the keys and rows of later claims; the end of the transaction unlocks them.
    :ivar offered: the claim that may be entered now.
    :ivar in_block: the block of a claim is running.
    """

    def __init__(
        self,
        session: LockingSession,
        transaction: SessionTransaction,
        rows: Mapping[Identity, T],
        builder: ReportBuilder,
        *,
        savepoints: bool,
        collect: bool,
    ) -> None:
        self.session, self._transaction = session, transaction
        self.remaining = deque(rows.items())
        self._builder, self._savepoints, self._collect = builder, savepoints, collect
        self.offered: Claim[T] | None = None
        self._offered_key: Identity = ()
        self.in_block = self.closed = self._ends_after_block = False
        self._savepoint: SessionTransaction | None = None
        self._to_commit: list[Identity] = []  # their blocks ended without an error
        self._rollback_cause: BaseException | None = None  # it rolled back the whole transaction
        self._committed = False
        session.on_commit(self._note_commit)

    def next(self) -> Claim[T] | None:
        """Return the next claim; after the last one, end the transaction and return None.

        :raises Exception: the commit failed, unless failures are collected.
        """
        self._give_back_offered()
        if not self.remaining:
            self.end()
            return None
        self._offered_key, row = self.remaining.popleft()
        self.offered = Claim(self, self._offered_key, row)
        return self.offered

    def enter_block(self, identity: Identity) -> None:
        """Begin the block of this row.  :raises LockMisuse: it belongs to another process."""
        context_of(self.session).transaction.refuse()
        self.offered, self.in_block = None, True
        if self._savepoints:
            try:
                self._savepoint = self.session.begin_nested()
            except BaseException as error:
                self.exit_block(identity, error)
                raise

    def exit_block(self, identity: Identity, raised: BaseException | None) -> bool:
        """End the block; return True if the report keeps its error.

        :raises Exception: the end of the savepoint or the commit failed, unless failures are
            collected.
        """
        self.in_block = False
        if self.session.get_transaction() is self._transaction:
            error = self._exit_open(identity, raised)
        else:
            error = self._exit_ended(identity, raised)
        if error is None or error is raised:
            return self._collects(error)
        if not self._collects(error):
            raise error
        return False

    def end(self) -> None:
        """Commit the blocks that have ended, unlock the rest; if a block is running, at its end.

        :raises Exception: the commit failed, unless failures are collected.
        """
        if self.in_block:
            self._ends_after_block = True
        elif not self.closed:
            self._give_back_offered()
            error = self._finish()
            if error is not None and not self._collects(error):
                raise error

    def _give_back_offered(self) -> None:
        if self.offered is not None:
            self.offered = None
            self._builder.given_back([self._offered_key])

    def _collects(self, error: BaseException | None) -> bool:
        return self._collect and isinstance(error, Exception)

    def _exit_open(self, identity: Identity, raised: BaseException | None) -> BaseException | None:
        """End a block whose transaction is open; return the error of the block or the commit."""
        error = raised or self._release_savepoint()
        if error is None:
            self._to_commit.append(identity)
        else:
            self._builder.failed([identity], error)
            self._roll_back_block(error)
        ends = self._ends_after_block or not self.remaining or self._rollback_cause is not None
        if not ends and (error is None or self._collects(error)):
            return error
        failure = self._finish()
        if error is not None and failure is not None:
            _log.error("claim_each: a commit failed after a block had failed", exc_info=failure)
        return error or failure

    def _release_savepoint(self) -> BaseException | None:
        try:
            if self._savepoint is not None:
                self._savepoint.commit()
        except BaseException as error:  # noqa: BLE001  # raised by exit_block()
            return error
        return None

    def _roll_back_block(self, error: BaseException) -> None:
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is None:
            self._rollback_cause = error
            return
        try:
            savepoint.rollback()
        except BaseException as failure:
            self._rollback_cause = error  # the server rolled back everything, or is unreachable
            if not isinstance(failure, Exception):
                self._finish()
                raise

    def _exit_ended(self, identity: Identity, error: BaseException | None) -> BaseException | None:
        """Report a block that called commit() or rollback() itself; return its error."""
        if self._committed:
            add, add_error = self._builder.processed, self._builder.on_commit_error
        else:
            add, add_error = self._builder.given_back, self._builder.failed
        add(self._to_commit)
        if error is None:
            add([identity])
        else:
            add_error([identity], error)
        self._close()
        return error

    def _finish(self) -> BaseException | None:
        """End the transaction; return its error, which is already in the report."""
        keys, self._to_commit = self._to_commit, []
        try:
            if self._rollback_cause is not None:
                self._builder.failed(keys, self._rollback_cause)
            elif keys:
                # SessionTransaction.__exit__() would commit nothing and raise nothing if the
                # program swallowed the error of a flush.
                self._transaction.commit()
                self._builder.processed(keys)
        except BaseException as error:  # noqa: BLE001  # raised by the callers
            (self._builder.on_commit_error if self._committed else self._builder.failed)(
                keys, error
            )
            return error
        finally:
            self._close()
        return None

    def _close(self) -> None:
        self.closed = True
        self._rollback_cause = None  # its traceback may refer to the owner of this object
        # Run all of them, even if some raise: the connection must return to the pool.
        with ErrorsIgnored(), ExitStack() as ends:
            ends.callback(self.session.close)
            ends.callback(self._transaction.__exit__, None, None, None)
            ends.callback(self.session.rollback)

    def _note_commit(self) -> None:
        self._committed = True


def log_errors_of(function: Callable[[], None]) -> None:
    """Call the function, and log an exception, which no caller could catch."""
    try:
        function()
    except Exception:  # noqa: BLE001  # the report has it
        _log.exception("claim_each: the blocks that had ended could not be committed")
