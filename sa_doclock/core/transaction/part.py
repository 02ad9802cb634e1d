"""SessionPart: how a feature joins the locks and the transaction of one session.

The core knows no feature.  It calls the hooks below; a session without parts has none to call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import lru_cache
from itertools import compress
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeVar

from sqlalchemy import Connection, Engine, Result
from sqlalchemy.orm import Mapper, Session

from ...dialects.base import Read
from ...errors import LockFailed, LockLost
from ...events import ReleasedLock
from ...options import LockOptions
from ..lock_info import DocumentKey, Identity, LockedName
from ..lock_request import LockCall, LockRequest
from .connection import TransactionConnection
from .plan import LockPlan

P = TypeVar("P", bound="SessionPart")

Take = Callable[[LockCall, LockRequest, Any], Any]
"""Takes the lock of a call: is given the call, the request as this try makes it, and the target."""

Limit = Callable[
    [TransactionConnection, LockPlan, LockRequest], AbstractContextManager[LockRequest | None]
]
"""Returns the block in which a lock is waited for; it may give another request to be sent."""

Reads = Callable[[Any, Identity], Iterable[Read]]
"""Returns the reads that follow the lock of the document of this class and key."""

Executor = Callable[[Callable[..., Result[Any]], Mapping[str, Any], Mapping[str, Any]], Result[Any]]
"""Executes a statement: is given what executes one as SQLAlchemy does, its execution options and
its bind arguments."""

Block = AbstractContextManager[Any] | None


class SessionPart:
    """A feature of one session: a gate, a pipeline, a limit, a warning.

    A part overrides the hooks that it needs; the others are never called.  It must not keep its
    session or the session's state alive for longer than it is installed.  An error that comes out
    of a hook is that of the call.
    """

    hooks: ClassVar[frozenset[str]] = frozenset()
    """The names of the hooks that this class overrides."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.hooks = frozenset(
            name for name in _HOOKS if getattr(cls, name) is not getattr(SessionPart, name)
        )

    # The call for a lock, in the order in which the hooks come.

    def check_request(self, request: LockRequest) -> None:
        """Check what the caller has ``given`` beside the lock, before anything is sent."""

    def route(self, request: LockRequest) -> LockRequest:
        """Return the request, with the database to ask where the part decides that."""
        return request

    def around_take(self, take: Take) -> Take:
        """Return what takes the lock: ``take``, with what the part does before and after it."""
        return take

    def bound(
        self, request: LockRequest, roots: Collection[Mapper[Any]], bind: Engine | Connection
    ) -> None:
        """Note the database of this lock, whose transaction has begun.

        :param roots: of the documents that are locked.
        """

    def around_limit(self, limit: Limit) -> Limit:
        """Return what limits the wait of each try: ``limit``, or another in its place."""
        return limit

    def reads_after(self, request: LockRequest) -> Iterable[Read]:
        """Return the reads of the part that follow this lock, so that a pipeline sends them along."""
        return ()

    def check_found(self, request: LockRequest, found: object) -> None:
        """Compare what was found with what the caller has ``given``; under the lock, if any."""

    def granted(self, documents: Sequence[DocumentKey | LockedName], lock: LockOptions) -> None:
        """Note what a call was granted that was not held as strongly before."""

    def failed(self, error: LockFailed, call: LockCall) -> None:
        """Note the failure of a call, before it is reported."""

    # The locks that are held.

    def is_over(self) -> bool:
        """Return whether the locks must not be counted on any more; nothing is sent."""
        return False

    def end_locks(self) -> LockLost | None:
        """End the transaction where ``is_over()``, and return the error of it."""
        return None

    def locks_lost(self) -> None:
        """Nobody knows any more what the transaction holds, or it has ended unasked."""

    def released(self, released: Sequence[ReleasedLock], outcome: str) -> None:
        """Note locks that were given up; ``outcome`` as for the event ``locks_released``."""

    # The transaction, in the order in which the hooks come.

    def using(self, bind: Engine | Connection) -> None:
        """Check a database that the program names by itself.  :raises LockMisuse: it must not."""

    def begun(self, connection: Connection, *, lent: bool) -> None:
        """Note a connection that has begun its part of the transaction, or a savepoint in it.

        :param lent: its end is another's.
        """

    def mark(self) -> Any:
        """Return what a later ``roll_back_to()`` needs: a savepoint is set now."""

    def roll_back_to(self, mark: Any) -> None:
        """Forget what came since; the mark is None where the part came after the savepoint."""

    def before_flush(self, session: Session) -> None:
        """The session is about to flush."""

    def before_commit(self) -> None:
        """The session is about to flush, and to commit its databases."""

    def after_commit(self) -> None:
        """All databases have committed."""

    def sends_commit(self) -> bool:
        """Return whether the statement that has failed just now was sent together with COMMIT."""
        return False

    def commit_not_done(self) -> bool:
        """Return whether the server has certainly not done the COMMIT whose connection was lost just now."""
        return False

    def settings_undone(self) -> None:
        """The server may have undone a setting of the transaction, with a savepoint or its end."""

    def discard(self) -> None:
        """Drop what waits to be sent: the transaction is rolled back."""

    def ended(self, *, committed: bool) -> None:
        """The transaction has ended, and the connections are in their pool."""

    def forget(self) -> None:
        """The session was rolled back or closed; perhaps it was in no transaction."""

    # What the session executes, and its blocks.

    def executor(self, session: Session, statement: Any) -> Executor | None:
        """Return what executes the statement in place of the session; None: it is not the part's.

        :param statement: one that may lock; INSERT, UPDATE and DELETE have ``around_dml()``.
        """
        return None

    def around_document(self, reads: Reads) -> Block:
        """Return a block around the lock of one document and the reads of its parts."""
        return None

    def around_write(self) -> Block:
        """Return a block around an INSERT, UPDATE or DELETE that the program executes."""
        return None

    def around_dml(
        self, statement: Any, parameters: Any, how: Mapping[str, Any]
    ) -> AbstractContextManager[Callable[[Any], Any]]:
        """Return a block around the same, which gives a function for its result.

        :param how: the execution options and bind arguments that it is executed with.
        """
        return nullcontext(_unchanged)

    def around_objects(self, objects: Collection[Any]) -> Block:
        """Return a block around the writing of these objects without a flush."""
        return None

    def around_rows(
        self, mapper: Mapper[Any], rows: Sequence[Mapping[str, Any]], *, insert: bool
    ) -> Block:
        """Return a block around the writing of rows without objects.

        :param insert: they are new; else they are changed, by their primary keys.
        """
        return None

    def around_unguarded(self) -> Block:
        """Return a block in which declared documents are written without their lock."""
        return None

    def around_save(self) -> Block:
        """Return a block around commit(), and around save_changes() where that commits."""
        return None

    def around_get_bind(self, get_bind: Callable[..., Any]) -> Callable[..., Any]:
        """Return what answers for ``Session.get_bind()``, which every statement asks."""
        return get_bind


def _unchanged(result: Any) -> Any:
    return result


_HOOKS: Final = frozenset(
    name for name, value in vars(SessionPart).items() if callable(value) and name[0] != "_"
)

NamedHook = tuple[Callable[..., Any], ...]


class SessionParts:
    """The parts of one session, and their hooks by their names, in the order of the parts.

    A session makes the hooks of a name when it calls them first.
    """

    all: tuple[SessionPart, ...] = ()
    route: tuple[Callable[[LockRequest], LockRequest], ...] = ()
    around_take: tuple[Callable[[Take], Take], ...] = ()
    check_request: tuple[Callable[[LockRequest], None], ...] = ()
    reads_after: tuple[Callable[[LockRequest], Iterable[Read]], ...] = ()
    check_found: tuple[Callable[[LockRequest, object], None], ...] = ()
    bound: NamedHook = ()
    around_limit: tuple[Callable[[Limit], Limit], ...] = ()
    granted: tuple[Callable[[Sequence[DocumentKey | LockedName], LockOptions], None], ...] = ()
    failed: tuple[Callable[[LockFailed, LockCall], None], ...] = ()
    is_over: tuple[Callable[[], bool], ...] = ()
    end_locks: tuple[Callable[[], LockLost | None], ...] = ()
    locks_lost: tuple[Callable[[], None], ...] = ()
    released: tuple[Callable[[Sequence[ReleasedLock], str], None], ...] = ()
    using: tuple[Callable[[Engine | Connection], None], ...] = ()
    begun: NamedHook = ()
    before_flush: tuple[Callable[[Session], None], ...] = ()
    before_commit: tuple[Callable[[], None], ...] = ()
    after_commit: tuple[Callable[[], None], ...] = ()
    sends_commit: tuple[Callable[[], bool], ...] = ()
    commit_not_done: tuple[Callable[[], bool], ...] = ()
    settings_undone: tuple[Callable[[], None], ...] = ()
    discard: tuple[Callable[[], None], ...] = ()
    forget: tuple[Callable[[], None], ...] = ()
    ended: NamedHook = ()
    executor: tuple[Callable[[Session, Any], Executor | None], ...] = ()
    around_document: tuple[Callable[[Reads], Block], ...] = ()
    around_write: tuple[Callable[[], Block], ...] = ()
    around_dml: NamedHook = ()
    around_objects: tuple[Callable[[Collection[Any]], Block], ...] = ()
    around_rows: NamedHook = ()
    around_unguarded: tuple[Callable[[], Block], ...] = ()
    around_save: tuple[Callable[[], Block], ...] = ()
    around_get_bind: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = ()

    def add(self, *parts: SessionPart) -> None:
        """Add parts behind those that there are."""
        self.replace((*self.all, *parts))

    def remove(self, part: SessionPart) -> None:
        """Take a part out again."""
        self.replace([one for one in self.all if one is not part])

    def find(self, kind: type[P]) -> P | None:
        """Return the part of this kind, where the session has one."""
        for part in self.all:
            if type(part) is kind:
                return part
        return None

    def replace(self, parts: Iterable[SessionPart]) -> None:
        """Have these parts, and no others."""
        vars(self).clear()
        self.all = tuple(parts)
        self.__class__ = _with_hooks_of(tuple(map(type, self.all)))


# Threads: a cache of a function that has one answer.
@lru_cache(maxsize=256)  # the sessions of a program have few combinations of parts
def _with_hooks_of(kinds: tuple[type[SessionPart], ...]) -> type[SessionParts]:
    """Return the class for parts of these kinds, with the hooks that one of them overrides."""
    overridden = frozenset[str]().union(*(kind.hooks for kind in kinds))
    names = overridden.intersection(vars(SessionParts))
    hooks = {name: _Hooks(name, [name in kind.hooks for kind in kinds]) for name in names}
    return type("SessionParts", (SessionParts,), hooks)


class _Hooks:
    """The attribute of SessionParts with the hooks of one name, made at its first use.

    A session calls few of its hooks: most sessions lock once, or never.

    :param overridden: of each part, whether it has this hook.
    """

    def __init__(self, name: str, overridden: Sequence[bool]) -> None:
        self._name, self._overridden = name, overridden
        self._hook_of = attrgetter(name)

    def __get__(self, parts: SessionParts, _owner: type[Any]) -> NamedHook:
        """Return them, and keep them in the object, where Python finds them from then on."""
        hooks = tuple(map(self._hook_of, compress(parts.all, self._overridden)))
        vars(parts)[self._name] = hooks
        return hooks


_NOTHING: Final = nullcontext()


def around(
    hooks: Sequence[Callable[..., Block]], *arguments: Any
) -> AbstractContextManager[object]:
    """Return the blocks of these hooks as one; most sessions have none."""
    if not hooks:
        return _NOTHING
    if len(hooks) == 1:  # its block alone, with no stack around it
        return hooks[0](*arguments) or _NOTHING
    return _around(hooks, arguments)


@contextmanager
def _around(hooks: Sequence[Callable[..., Block]], arguments: tuple[Any, ...]) -> Iterator[None]:
    with ExitStack() as stack:
        for hook in hooks:
            block = hook(*arguments)
            if block is not None:
                stack.enter_context(block)
        yield
