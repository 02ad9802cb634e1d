"""run_transaction(): a function in a separate transaction, retried after a conflict.

A deadlock or a snapshot conflict rolls back the whole transaction, so all of it must run again, in
a new session.  ``retry_on`` names further errors to retry.  This module decides which errors to
retry; tenacity retries and waits.
"""

from __future__ import annotations

import inspect
import logging
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InvalidRequestError,
    PendingRollbackError,
    SQLAlchemyError,
)

from .core.instrumentation import log_fields
from .core.session import commits_of, context_of
from .core.transaction import Condition, SessionPart, binds_of
from .dialects import is_rolled_back_later
from .errors import (
    CommitUnknown,
    DeadlockDetected,
    DocLockError,
    LockFailed,
    LockLost,
    LockMisuse,
    LockNotAvailable,
    SnapshotConflict,
)
from .functions import check_function, check_result
from .options import check_positive
from .session import LockingSession

if TYPE_CHECKING:
    from tenacity import RetryCallState

S = TypeVar("S", bound=LockingSession)
T = TypeVar("T")

RetryOn: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
"""The errors that run_transaction() retries in addition to its own."""

_log = logging.getLogger("sa_doclock")


def run_transaction(
    session_factory: Callable[[], S],
    fn: Callable[[S], T],
    *,
    attempts: int = 5,
    backoff: float = 0.05,
    max_backoff: float = 2.0,
    retry_not_available: bool = False,
    retry_on: RetryOn | None = None,
    commit_outcome: bool = False,
) -> T:
    """Run ``fn(session)`` in a separate transaction, commit, and return its result.

    After a deadlock or a snapshot conflict, the function runs again.

    Each attempt makes a session, begins its transaction, calls the function, commits, and closes
    the session; ``save_changes()`` in the function only flushes.  DeadlockDetected and
    SnapshotConflict are retried whether a statement, a flush or the commit raises them, even if the
    function swallows them. No other error is retried unless ``retry_on`` names it, and nothing
    after a commit. docs/retrying.md has the cases.

    The function runs once for each attempt, so effects outside the transaction, such as a mail,
    belong in ``session.on_commit()``.  Entities that it returns are detached, and with
    ``expire_on_commit`` (the default) expired.

    Example::

        def add_one(session):
            order = session.get_one_entity(Order, 42, LockOptions.ForUpdate)
            order.total += 1

        run_transaction(Session, add_one, attempts=3)

    :param session_factory: ``sessionmaker(engine, class_=LockingSession)``, or another function
        without arguments that makes a new LockingSession.
    :param fn: a function of the session.
    :param attempts: the largest number of runs, including the first.
    :param backoff: seconds; the pause before the second attempt is a random part of it, before the
        third of twice as much, and so on ("full jitter").  0: no pause.
    :param max_backoff: the longest pause, in seconds.
    :param retry_not_available: retry LockNotAvailable too.  On Python 3.10, SQLite does not
        distinguish a snapshot conflict from a held lock: both are LockNotAvailable.
    :param retry_on: further errors to retry: an exception class such as StaleDataError, a tuple of
        classes, or a function of the error that returns True or False.  An error that leaves open
        whether COMMIT took effect is never retried.
    :param commit_outcome: True sets this option of :class:`LockingSession` for the sessions of the
        call, so that a COMMIT whose connection is lost is looked up, and retried if it did not take
        effect.
    :raises DeadlockDetected: in the last attempt; ``error.attempts`` is their number.  An error of
        ``retry_on`` is raised in the same way.
    :raises SnapshotConflict: likewise.
    :raises CommitUnknown: the connection was lost in COMMIT, which may or may not have taken
        effect.
    :raises LockMisuse: called within the function of another run_transaction(); or the factory
        returned a session with an open transaction.
    :raises TypeError: an argument has the wrong type; the factory makes other sessions.
    :raises ValueError: less than one attempt; seconds that are negative, NaN or infinite.
    """
    policy = checked_policy(
        *(session_factory, attempts, backoff, max_backoff, retry_not_available, retry_on),
        commit_outcome,
    )
    check_function("fn", fn, "of the session", arguments=1, instead="async_run_transaction()")
    return run_checked(policy, session_factory, fn)


class Policy(NamedTuple):
    """The errors to retry, the number of attempts, and the pauses between them.

    :ivar retry_on: returns whether the program wants to retry this error; None: no further ones.
    """

    attempts: int
    backoff: float
    max_backoff: float
    errors: tuple[type[Exception], ...]
    retry_on: Callable[[Exception], bool] | None = None
    commit_outcome: bool = False

    def repeats(self, error: BaseException) -> bool:
        """Return whether another attempt follows this error."""
        if isinstance(error, self.errors) or (isinstance(error, LockLost) and error.retryable):
            return True
        if self.retry_on is None or not isinstance(error, Exception):
            return False
        answer = self.retry_on(error)
        check_result("retry_on", self.retry_on, answer)
        return bool(answer)


def checked_policy(
    session_factory: object,
    attempts: int,
    backoff: float,
    max_backoff: float,
    retry_not_available: bool,
    retry_on: object,
    commit_outcome: object,
) -> Policy:
    """Return the checked arguments of :func:`run_transaction` as a Policy."""
    check_positive("attempts", attempts)
    _check_seconds("backoff", backoff)
    _check_seconds("max_backoff", max_backoff)
    _check_bool("retry_not_available", retry_not_available)
    _check_bool("commit_outcome", commit_outcome)
    if not callable(session_factory):
        raise TypeError(f"session_factory must be a function, not {session_factory!r}")
    errors: tuple[type[Exception], ...] = (DeadlockDetected, SnapshotConflict)
    if retry_not_available:
        errors += (LockNotAvailable,)
    more: Callable[..., bool] | None = None
    if isinstance(retry_on, (type, tuple)):
        classes = retry_on if isinstance(retry_on, tuple) else (retry_on,)
        for cls in classes:
            if not (isinstance(cls, type) and issubclass(cls, Exception)):
                raise TypeError(
                    f"retry_on must name subclasses of Exception, and {cls!r} is not one"
                )
        errors += classes
    elif retry_on is not None:
        check_function(
            *("retry_on", retry_on, "of the error, an exception class, or a tuple of classes"),
            arguments=1,
            instead="a plain function that returns True or False",
        )
        more = cast("Callable[..., bool]", retry_on)
    return Policy(attempts, backoff, max_backoff, errors, more, bool(commit_outcome))


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if not 0 <= value < math.inf:  # NaN is neither
        raise ValueError(f"{name} must be zero or more seconds, not {value!r}")


def run_checked(policy: Policy, session_factory: Callable[[], S], fn: Callable[[S], T]) -> T:
    """Run :func:`run_transaction` with checked arguments."""
    from tenacity import Retrying  # noqa: PLC0415  # it takes 30 ms, and only retries need it

    attempts_of_call = Attempts(policy)

    def attempt() -> T:
        session = session_factory()
        checked_session(session, session, "sessionmaker", "LockingSession")
        with closing(session), session.begin(), attempts_of_call.attempt(session):
            result = fn(session)
            check_result("fn", fn, result)
            # Leaving the block would commit nothing if a flush failed and fn swallowed its error.
            if session.in_transaction():
                session.commit()
        return result

    return Retrying(**attempts_of_call.retrying_arguments())(attempt)


def checked_session(made: object, session: object, maker: str, kind: str) -> LockingSession:
    """Return the LockingSession that a session_factory has made."""
    if not isinstance(session, LockingSession):
        if inspect.iscoroutine(made):
            made.close()  # avoids "never awaited"
        raise TypeError(
            f"session_factory must make {kind}s, as {maker}(engine, class_={kind}) does; "
            f"it made {made!r}"
        )
    begun = session.in_transaction() or (
        _is_lent(session) and session.join_transaction_mode != "create_savepoint"
    )
    if begun:
        raise LockMisuse(
            "session_factory returned a session with an open transaction; run_transaction() needs a "
            "new session for every attempt"
        )
    return session


def _is_lent(session: LockingSession) -> bool:
    binds = (session.bind, *binds_of(session))
    return any(isinstance(bind, Connection) and bind.in_transaction() for bind in binds)


class _Attempt(SessionPart):
    def __init__(self, session: LockingSession) -> None:
        self.session = session
        self.has_ended = False
        self._commits = commits_of(session)
        self._in_commit = False
        self._lent = _is_lent(session)

    def using(self, bind: Engine | Connection) -> None:
        """Check a database that the session first uses during the attempt.

        :raises LockMisuse: it is a Connection with an open transaction; nothing was done there.
        """
        if not isinstance(bind, Connection) or not bind.in_transaction():
            return
        known = context_of(self.session).connections.find(bind)
        if known is not None and known.connection is bind:
            return
        self._lent = True
        if self.session.join_transaction_mode != "create_savepoint":
            raise LockMisuse(
                "the session uses a Connection with an open transaction, from its own get_bind(), "
                "bind_mapper(), bind_table() or bind_arguments; to retry, run_transaction() would have "
                "to roll back the lender's work"
            )

    @property
    def has_committed(self) -> bool:
        return commits_of(self.session) > self._commits

    def before_commit(self) -> None:
        self._in_commit = True

    def discard(self) -> None:
        self._in_commit = False

    def can_be_repeated(self, failure: BaseException) -> bool:
        """Return whether the attempt left nothing in the database or in a lender's transaction."""
        if self.has_committed or self._is_in_lenders() or isinstance(failure, CommitUnknown):
            return False
        # Of the errors of COMMIT, only these certainly mean that the server refused.
        if self._in_commit and not isinstance(failure, (LockFailed, IntegrityError)):
            return False
        of_commit = self._in_commit or (
            isinstance(failure, DBAPIError)
            and failure.orig is not None
            and failure.statement is None
        )
        several = len(context_of(self.session).connections.all()) > 1 and not self.session.twophase
        # One database may have committed before another one's COMMIT failed.
        return not (of_commit and several)

    def _is_in_lenders(self) -> bool:
        bind = self.session.bind
        if isinstance(bind, Connection) and is_rolled_back_later(bind):
            return (
                context_of(self.session).transaction.condition is Condition.LOST
            )  # otherwise it has a savepoint
        return self._lent


# A context variable: functions that fn calls have no other way to find the attempt.
_current: ContextVar[_Attempt | None] = ContextVar("sa_doclock_transaction", default=None)


class Attempts:
    """The attempts of one call, and the decision to retry a failed one."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._error: Exception | None = None  # the raised error, which is to be retried
        self._failure: BaseException | None = None  # the same, or its cause
        self._session: LockingSession | None = None  # the session of the failed attempt
        current = _current.get()
        if current is not None and not (current.has_ended or current.has_committed):
            raise LockMisuse(
                "run_transaction() was called inside the function of another run_transaction(): it would "
                "commit on its own, and again at each retry of the outer one; call the function "
                "with the outer session, or from session.on_commit()"
            )

    @contextmanager
    def attempt(self, session: LockingSession) -> Iterator[None]:
        """Record a failure of the block while the session still knows its cause."""
        attempt = _Attempt(session)
        if self._policy.commit_outcome:
            from .features.commit_lookup import look_up_commits  # noqa: PLC0415  # of those who want it

            look_up_commits(session, context_of(session))
        token = _current.set(attempt)
        context_of(session).parts.add(attempt)
        try:
            yield
        except Exception as error:
            failure = _first_failure(session, error)
            if attempt.can_be_repeated(failure) and (
                self._policy.repeats(failure)
                or (failure is not error and self._policy.repeats(error))
            ):
                self._error, self._failure, self._session = error, failure, session
            raise
        finally:
            attempt.has_ended = True
            context_of(session).parts.remove(attempt)
            _current.reset(token)

    def retrying_arguments(self) -> dict[str, Any]:
        """Return the arguments of tenacity's Retrying or AsyncRetrying."""
        from tenacity import stop_after_attempt, wait_random_exponential  # noqa: PLC0415

        return {
            "stop": stop_after_attempt(self._policy.attempts),
            "wait": wait_random_exponential(self._policy.backoff, self._policy.max_backoff),
            "retry": lambda _: self._failure is not None,
            "before_sleep": self._repeat,
            "retry_error_callback": self._give_up,
        }

    def _repeat(self, state: RetryCallState) -> None:
        number, attempts = state.attempt_number, self._policy.attempts
        assert state.next_action is not None
        seconds = state.next_action.sleep
        words = f"attempt {number} of {attempts} failed, the next in {seconds:.3f} s"
        self._report(logging.INFO, "retried", words, number, seconds)

    def _give_up(self, state: RetryCallState) -> None:
        error, number = self._error, state.attempt_number
        assert error is not None
        words = f"given up after {number} attempt{'s' * (number != 1)}"
        self._report(logging.WARNING, "given up", words, number, None)
        with suppress(AttributeError):  # a class with __slots__ has no room for it
            error.attempts = number  # type: ignore[attr-defined]
        if isinstance(error, (DocLockError, SQLAlchemyError)):
            message, *others = error.args or ("",)
            error.args = (f"{message} ({words})".lstrip(), *others)
        elif sys.version_info >= (3, 11):  # an error of the program's class keeps its arguments
            error.add_note(f"run_transaction: {words}")
        raise error

    def _report(
        self, level: int, outcome: str, words: str, number: int, pause: float | None
    ) -> None:
        failure, session = self._failure, self._session
        assert failure is not None
        assert session is not None
        self._error = self._failure = self._session = None
        waited = failure.waited if isinstance(failure, LockFailed) else None
        fields = log_fields(failure, waited or None, outcome)
        fields |= {"attempt": number, "attempts": self._policy.attempts}
        text = str(failure.args[0]) if failure.args else ""
        if not isinstance(failure, DocLockError):  # without SQL and parameters
            text = ": ".join([type(failure).__name__, *text.splitlines()[:1]])
        _log.log(level, "run_transaction: %s: %s", words, text, extra=fields)
        session.dispatch.transaction_retried(session, failure, number, pause)


def _first_failure(session: LockingSession, error: BaseException) -> BaseException:
    """Return the original failure, if this error only reports an earlier one."""
    # After a failed flush, SQLAlchemy raises one of these two without a cause.  Statements in a
    # block of begin() raise the second, which is also the base class of many others.
    if isinstance(error, PendingRollbackError) or type(error) is InvalidRequestError:
        if error.__cause__ is None:
            error.__cause__ = context_of(session).transaction.undone_by
        if error.__cause__ is not None:
            return _first_failure(session, error.__cause__)
    return error
