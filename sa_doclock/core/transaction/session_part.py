"""SessionParts: how the features join the locks and the transaction of one session.

The core knows no feature.  Adoption, the guard and so on have names here: the protocols below, each
None if it is off, set by the session package.  All others join by hooks; a session without them has
none to call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast

from sqlalchemy import Connection, Engine, Result
from sqlalchemy.orm import Mapper, Session

from ...dialects.base import Read
from ...errors import LockFailed, LockLost
from ...events import ReleasedLock
from ...keys import Identity
from ..lock_request import LockCall, LockRequest
from .plan import LockPlan
from .transaction_connection import TransactionConnection

Block = AbstractContextManager[Any] | None

Noting = AbstractContextManager[Callable[[Any], Any]]
"""A block around a statement that writes; it yields a function of the result."""

Executor = Callable[[Callable[..., Result[Any]], Mapping[str, Any], Mapping[str, Any]], Result[Any]]
"""Executes a statement: takes SQLAlchemy's own executor, its execution options and its bind arguments."""

Reads = Callable[[Any, Identity], Iterable[Read]]
"""Returns the reads that follow the lock of the document with this class and key."""


class Guard(Protocol):
    """Refuses to write documents that are not held."""

    def before_flush(self, session: Session) -> None:
        """Check the writes of the coming flush."""

    def around_dml(self, statement: Any, parameters: Any, how: Mapping[str, Any]) -> Noting:
        """Return a block around an INSERT, UPDATE or DELETE of the program; also around a bulk method.

        :param how: the execution options and bind arguments of the execution.
        """

    def around_objects(self, objects: Collection[Any]) -> AbstractContextManager[Any]:
        """Return a block around the writing of these objects without a flush."""

    def around_unguarded(self) -> AbstractContextManager[Any]:
        """Return a block in which declared documents are written without their lock."""

    def roll_back(self) -> None:
        """A savepoint is rolled back."""


class Adoption(Protocol):
    """Makes the ``with_for_update()`` of the program a lock."""

    def executor(self, session: Session, statement: Any) -> Executor | None:
        """Return the executor of the statement as a lock, or None if it is not a lock."""


class Precondition(Protocol):
    """Compares the caller's ``given`` arguments, such as a version, with the row."""

    def check_request(self, request: LockRequest) -> None:
        """Check the arguments, before anything is sent."""

    def check_found(self, request: LockRequest, found: object) -> None:
        """Compare the found row with the arguments, under the lock if there is one."""


class Versions(Precondition, Protocol):
    """Raises the versions of documents."""

    def before_flush(self, session: Session) -> None:
        """The session is about to flush changes that the guard has allowed."""


class Outbox(Protocol):
    """Keeps back statements of one transaction, to send several in one round trip."""

    def begun(self, connection: Connection, *, lent: bool) -> None:
        """Record a connection, as ``SessionPart.begun()`` does."""

    def before_commit(self) -> None:
        """The session is about to flush, and to commit its databases."""

    def paused(self) -> AbstractContextManager[Any]:
        """Return a block in which an INSERT, UPDATE or DELETE of the program is answered at once."""

    def around_save(self) -> Block:
        """Return a block around commit(), and around a save_changes() that commits."""

    def send_writes(self) -> None:
        """Send the waiting statements: the databases have committed."""

    def sends_commit(self) -> bool:
        """Return whether the statement that has just failed was sent together with COMMIT."""


class Pipelined(Protocol):
    """Sends several statements of a session in one round trip: a pipeline."""

    def of_transaction(self) -> Outbox:
        """Return the outbox of a transaction, which is dropped with it."""

    def around_document(self, reads: Reads) -> AbstractContextManager[Any]:
        """Return a block around the lock of one document and the reads of its parts."""


class CommitOutcome(Protocol):
    """Looks up COMMITs whose answer was lost."""

    def commit_not_done(self) -> bool:
        """Return whether the server certainly did not execute the COMMIT whose connection was just
        lost.
        """


class Deadline(Protocol):
    """Ends a transaction that holds its locks for too long."""

    def is_over(self) -> bool:
        """Return whether the locks are no longer reliable; sends nothing."""

    def end_locks(self) -> LockLost | None:
        """End the transaction if ``is_over()``, and return the error."""


P = TypeVar("P", bound="SessionPart")

Take = Callable[[LockCall, LockRequest, Any], Any]
"""Takes the lock of a call: gets the call, the request of this try, and the target."""

Limit = Callable[
    [TransactionConnection, LockPlan, LockRequest], AbstractContextManager[LockRequest | None]
]
"""Returns the block in which a lock waits; the block may yield another request to be sent."""


class SessionPart:
    """A feature of one session: a gate, a pipeline, a limit, a warning.

    A part overrides the hooks that it needs; the others are never called.  It must not keep its
    session or the session's state alive for longer than it is installed.  An error in a hook is the
    call's error.
    """

    hooks: ClassVar[frozenset[str]] = frozenset()
    """The names of the hooks that this class overrides."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.hooks = frozenset(
            name for name in _HOOKS if getattr(cls, name) is not getattr(SessionPart, name)
        )

    # The hooks of a lock call, in the order in which they are called.

    def route(self, request: LockRequest) -> LockRequest:
        """Return the request, with its database if the part chooses it."""
        return request

    def around_take(self, take: Take) -> Take:
        """Return the function that takes the lock: ``take``, with the part's work before and after it."""
        return take

    def bound(
        self, request: LockRequest, roots: Collection[Mapper[Any]], bind: Engine | Connection
    ) -> None:
        """Note the database of this lock, whose transaction has begun.

        :param roots: of the documents to lock.
        """

    def around_limit(self, limit: Limit) -> Limit:
        """Return the limit of the wait of each try: ``limit``, or a replacement."""
        return limit

    def settled(self, call: LockCall, error: LockFailed | None) -> None:
        """Note the new locks of a call, or its failure, before it is reported."""

    # Hooks of held locks.

    def released(self, released: Sequence[ReleasedLock], outcome: str) -> None:
        """Note released locks; ``outcome`` as for the event ``locks_released``."""

    # The hooks of the transaction, in the order in which they are called.

    def using(self, bind: Engine | Connection) -> None:
        """Check a database that the program names itself.  :raises LockMisuse: it must not."""

    def begun(self, connection: Connection, *, lent: bool) -> None:
        """Note a connection that has begun its part of the transaction, or a savepoint in it.

        :param lent: its owner ends it.
        """

    def roll_back_to(self, moment: int) -> None:
        """Forget later entries: those with a greater ``next_moment()``."""

    def before_flush(self, session: Session) -> None:
        """The session is about to flush."""

    def before_commit(self) -> None:
        """The session is about to flush, and to commit its databases."""

    def discard(self) -> None:
        """Drop the unsent writes: the transaction is rolled back."""

    def ended(self, *, committed: bool) -> None:
        """The transaction has ended, and the connections are in their pool."""

    # Hooks of the session's statements.

    def around_write(self, statement: Any, parameters: Any, how: Mapping[str, Any]) -> Noting:
        """Return a block around a write without a flush; it yields a function of the result.

        :param statement: an INSERT, UPDATE or DELETE; None for a bulk method.
        :param how: the execution options and bind arguments of the execution.
        """
        return nullcontext(_unchanged)

    def around_get_bind(self, get_bind: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of ``Session.get_bind()``, which every statement calls."""
        return get_bind


def _unchanged(result: Any) -> Any:
    return result


_HOOKS: Final = tuple(
    name for name, value in vars(SessionPart).items() if callable(value) and name[0] != "_"
)

NamedHook = tuple[Callable[..., Any], ...]


class SessionParts:
    """The parts of one session: some by name, and the hooks of the others in order.

    :ivar conditions: of the versions, and of the check-outs.
    """

    guard: Guard | None = None
    adoption: Adoption | None = None
    versions: Versions | None = None
    conditions: tuple[Precondition, ...] = ()
    pipeline: Pipelined | None = None
    deadline: Deadline | None = None
    commit_outcome: CommitOutcome | None = None

    route: tuple[Callable[[LockRequest], LockRequest], ...] = ()
    around_take: tuple[Callable[[Take], Take], ...] = ()
    bound: NamedHook = ()
    around_limit: tuple[Callable[[Limit], Limit], ...] = ()
    settled: tuple[Callable[[LockCall, LockFailed | None], None], ...] = ()
    released: tuple[Callable[[Sequence[ReleasedLock], str], None], ...] = ()
    using: tuple[Callable[[Engine | Connection], None], ...] = ()
    begun: NamedHook = ()
    roll_back_to: tuple[Callable[[int], None], ...] = ()
    before_flush: tuple[Callable[[Session], None], ...] = ()
    before_commit: tuple[Callable[[], None], ...] = ()
    discard: tuple[Callable[[], None], ...] = ()
    ended: NamedHook = ()
    around_write: tuple[Callable[[Any, Any, Mapping[str, Any]], Noting], ...] = ()
    around_get_bind: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = ()

    @property
    def all(self) -> Collection[SessionPart]:
        """The parts without names."""
        hooks = (hook for name in _HOOKS for hook in getattr(self, name))
        return dict.fromkeys(cast("Any", hook).__self__ for hook in hooks)

    def add(self, *parts: SessionPart) -> None:
        """Add parts after the present ones, with the hooks that they override."""
        for part in parts:
            for name in part.hooks:
                setattr(self, name, (*getattr(self, name), getattr(part, name)))

    def remove(self, part: SessionPart) -> None:
        """Remove a part."""
        for name in part.hooks:
            hooks = getattr(self, name)
            setattr(self, name, tuple(hook for hook in hooks if hook.__self__ is not part))

    def find(self, kind: type[P]) -> P | None:
        """Return the session's part of this kind, or None."""
        for part in self.all:
            if type(part) is kind:
                return part
        return None
