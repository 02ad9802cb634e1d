"""One run of the two functions, which executes one statement at a time.

Before each statement, COMMIT and ROLLBACK that can matter to the other one, a function waits for
its turn.  A turn is granted when each function waits for one, has ended, or waits for a lock of the
other one, according to the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from sqlalchemy import Connection, Engine

from ...process_waits import wait_observer
from ..lock_waits import (
    FIRST_LOOK,
    LONG_STATEMENT,
    NEXT_LOOK,
    ServersAsked,
    blocked_by,
    connection_id,
    locks_database,
    monitoring_of,
    server_of,
    waits_for_file,
)
from ..loops import wait_for_turn
from .accesses import conflict
from .participant import FIRST, SECOND, Participant, Step, current_participant

IN_PROCESS: Final = "a function waited in this process, at a gate or between two tries"
NOT_SAID: Final = "a function waited, and no server said for whom"


class Diverged(Exception):
    """The run went differently than before: an order could not be forced."""


@dataclass(frozen=True)
class Outcome:
    """The end of a function that ran in :func:`two_at_once`.

    :ivar value: its return value.
    :ivar error: its exception; None if it returned.
    """

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class Observer:
    """Records the steps on which no order can be forced; this one ignores them."""

    def note_parallel(self, step: Step) -> None:
        """Record a step that a second thread or task of a function sends while the first one waits."""

    def note_shared(self, step: Step) -> None:
        """Record a connection that both functions use, in one transaction."""


class Waits:
    """Knows who waits for whom.

    :param run: runs a function of SQLAlchemy on an asynchronous engine.
    :ivar servers: asks them who waits.
    :ivar unforced: the waits whose order cannot be forced, in words.
    """

    def __init__(self, run: Callable[[Callable[[], Any]], Any], patience: float) -> None:
        self.servers = ServersAsked(run)
        self._patience = patience
        self._owners: dict[tuple[Hashable, int], int] = {}  # by the server's id of the connection
        self._asked_at: dict[Hashable, float] = {}
        self.unforced: set[str] = set()

    def note_owner(self, participant: Participant, connection: Connection) -> None:
        """Record the owner of a connection."""
        number = connection_id(connection)
        if number is not None:
            self._owners[server_of(connection.engine), number] = participant.number

    def find(self, waiter: Participant, other: Participant) -> bool:
        """Return whether one function, which has made no progress for a moment, waits for the other
        one.
        """
        if waiter.in_process:
            self.unforced.add(IN_PROCESS)
            return True
        quiet = time.monotonic() - waiter.active_at
        engine = waiter.engine
        if engine is not None:
            if locks_database(engine):
                holds = other.holds_file_of(engine)
                found = waits_for_file(waiter.statement, quiet, other_holds=holds)
            else:
                found = self._waits_in_server(engine, waiter, other, quiet)
            if found:
                return True
        return self._guess(quiet, self._patience)

    def _waits_in_server(
        self, engine: Engine, waiter: Participant, other: Participant, quiet: float
    ) -> bool:
        blockers = self._blockers(engine)
        if blockers is None:
            return self._guess(quiet, LONG_STATEMENT)
        mine = self._ids(engine, waiter)
        return not blocked_by(mine, blockers).isdisjoint(self._ids(engine, other))

    def _blockers(self, engine: Engine) -> Mapping[int, set[int]] | None:
        """Return who waits for whom; {} if the server was asked a moment ago, None if it cannot tell."""
        monitoring = monitoring_of(engine)
        if monitoring is None:
            return None
        server = server_of(engine)
        asked_at = self._asked_at.get(server, 0.0)
        if time.monotonic() - asked_at < monitoring.seconds_between_looks:
            return {}
        self._asked_at[server] = time.monotonic()
        return self.servers.blockers(engine)

    def _guess(self, quiet: float, longest: float) -> bool:
        if quiet >= longest:
            self.unforced.add(NOT_SAID)
        return quiet >= longest

    def _ids(self, engine: Engine, participant: Participant) -> set[int]:
        server = server_of(engine)
        return {
            number
            for (asked, number), owner in self._owners.items()
            if asked == server and owner == participant.number
        }


Chooser = Callable[[dict[int, Step], Sequence[Step]], int]
"""Chooses the next function, from the possible next steps and the steps of all earlier turns."""

Function = Callable[[], Any]

_LOOKS: Final = (FIRST_LOOK, 0.02, 0.05, NEXT_LOOK)
"""Seconds between one look at the server and the next."""

SENT, WAITS, GOES_ON = "sent", "waits", "goes on"


class Scheduler:
    """Runs two functions once.

    :param call: calls a function, and awaits its result if it is a coroutine.
    :param observer: records the steps on which no order can be forced.
    :param every_step: steps that cannot matter to the other one wait for their turn too.
    :ivar events: the steps in order, each with its outcome.
    :ivar chosen: the function of each turn, with its step.
    :ivar surprise: a wait between steps that seemed to have nothing in common.
    """

    current: ClassVar[ContextVar[Any]] = current_participant

    def __init__(
        self,
        waits: Waits,
        call: Callable[[Function], Any],
        observer: Observer | None = None,
        *,
        every_step: bool = False,
    ) -> None:
        self._observer = Observer() if observer is None else observer
        self.participants = {number: Participant(number, observer) for number in (FIRST, SECOND)}
        self.events: list[tuple[str, Step]] = []
        self.chosen: list[Step] = []
        self.surprise: Step | None = None
        self._waits, self._call = waits, call
        self._every_step = every_step
        self._changed = threading.Condition()
        self._free = False
        self._outcomes: dict[int, Outcome] = {}
        self._timeout = self._end = 0.0

    def run(
        self, functions: tuple[Function, Function], choose: Chooser, timeout: float
    ) -> tuple[Outcome, Outcome]:
        """Return the outcome of each.

        :raises TimeoutError: one of them has not ended; it continues in its thread.
        :raises Diverged: from ``choose``, after both have ended.
        """
        self._timeout, self._end = timeout, time.monotonic() + timeout
        threads = [
            # An empty context: without the test's context variables, such as a Flask context.
            threading.Thread(target=Context().run, args=(self._run, number, function), daemon=True)
            for number, function in zip((FIRST, SECOND), functions, strict=True)
        ]
        try:
            for thread in threads:
                thread.start()
            self._direct(choose)
        finally:
            self._let_go()
        return self._outcomes[FIRST], self._outcomes[SECOND]

    def _run(self, number: int, function: Function) -> None:
        participant = self.participants[number]
        self.current.set(participant)
        wait_observer.set(partial(_in_process, participant))
        try:
            self._outcomes[number] = Outcome(self._call(function))
        except BaseException as error:  # noqa: BLE001  # the caller looks at it
            self._outcomes[number] = Outcome(error=error)
        with self._changed:
            self._note_goes_on(participant)
            participant.done = True
            self._changed.notify_all()

    def _direct(self, choose: Chooser) -> None:
        self._settle()
        while ready := self._ready():
            self._check_time()
            try:
                number = choose(ready, self.chosen)
            except Diverged:
                self._let_go()
                self._wait_for_all()
                raise
            self._give_turn(self.participants[number])
            self._settle()
        self._wait_for_all()

    def _ready(self) -> dict[int, Step]:
        return {
            number: participant.step
            for number, participant in self.participants.items()
            if participant.turn is not None and participant.step is not None
        }

    def _give_turn(self, participant: Participant) -> None:
        with self._changed:
            turn, participant.turn = participant.turn, None
            assert turn is not None
            assert participant.step is not None
            participant.note_active()
            self.chosen.append(participant.step)
            self.events.append((SENT, participant.step))
        turn.set_result(None)

    @property
    def sent(self) -> list[Step]:
        """The steps in the order in which they were sent."""
        return [step for kind, step in self.events if kind == SENT]

    def _settle(self) -> None:
        """Return when each function waits for its turn, has ended, or waits for the other one."""
        looks = 0
        while running := [
            participant for participant in self.participants.values() if participant.runs
        ]:
            if self._moves_soon(running):
                continue
            waiting = list(filter(self._look, running))
            if len(running) == len(waiting) == 1:
                return
            self._check_time()
            with self._changed:
                if all(participant.runs for participant in running):
                    self._changed.wait(_LOOKS[min(looks, len(_LOOKS) - 1)])
            looks += 1

    def _moves_soon(self, running: list[Participant]) -> bool:
        """Return whether a function makes progress before the first look at the server is due."""
        with self._changed:
            pause = FIRST_LOOK - (
                time.monotonic() - max(participant.active_at for participant in running)
            )
            return pause > 0 and self._changed.wait(pause)

    def _look(self, participant: Participant) -> bool:
        """Record and return whether a function waits for the other one."""
        other = self.participants[FIRST + SECOND - participant.number]
        if other.done or not self._waits.find(participant, other) or not participant.runs:
            return False
        if not participant.waits:
            participant.waits = True
            step = participant.step
            if step is not None:
                self.events.append((WAITS, step))
            if step is not None and not participant.in_process:
                self._check_expected(step, other)
        return True

    def _check_expected(self, step: Step, other: Participant) -> None:
        """Record a wait that the table of conflicts does not explain."""
        now = other.step.accesses if other.step is not None else frozenset()
        if not other.conflicts(step.used) and not conflict(now, step.used):
            self.surprise = step

    def _wait_for_all(self) -> None:
        while not all(participant.done for participant in self.participants.values()):
            self._check_time()
            with self._changed:
                self._changed.wait(NEXT_LOOK)

    def _check_time(self) -> None:
        if time.monotonic() < self._end:
            return
        running = [
            participant for participant in self.participants.values() if not participant.done
        ]
        names = " and the ".join(
            "second" if participant.number == SECOND else "first" for participant in running
        )
        raise TimeoutError(self._overdue(names))

    def _overdue(self, names: str) -> str:
        running = [
            participant for participant in self.participants.values() if not participant.done
        ]
        last = "; ".join(
            participant.step.statement for participant in running if participant.step is not None
        )
        return f"the {names} function has not ended; the last statement: {last}"

    def _let_go(self) -> None:
        with self._changed:
            self._free = True
            for participant in self.participants.values():
                if participant.turn is not None:
                    turn, participant.turn = participant.turn, None
                    turn.set_result(None)

    def _note_goes_on(self, participant: Participant) -> None:
        if participant.waits and participant.step is not None:
            self.events.append((GOES_ON, participant.step))
        participant.waits = False

    # In the thread or task of a function.

    def wait_for_turn(self, participant: Participant, connection: Connection, step: Step) -> None:
        """Return when the step may be sent."""
        turn: Future[None] = Future()
        other = self.participants[FIRST + SECOND - participant.number]
        with self._changed:
            if participant.turn is not None:  # of another thread or task of this function
                self._observer.note_parallel(step)
                self.events.append((SENT, step))
                return
            if not other.done and other.shares(connection):
                self._observer.note_shared(step)
            self._note_goes_on(participant)
            participant.use(connection)
            participant.step = step
            participant.note_active()
            self._waits.note_owner(participant, connection)
            if self._free or not (step.accesses or self._every_step):
                self.events.append((SENT, step))
                return
            participant.turn = turn
            self._changed.notify_all()
        wait_for_turn(turn, connection)


@contextmanager
def _in_process(participant: Participant) -> Iterator[None]:
    """Record that a function waits inside this process, as at a gate."""
    participant.in_process = True
    try:
        yield
    finally:
        participant.in_process = False
        participant.note_active()
