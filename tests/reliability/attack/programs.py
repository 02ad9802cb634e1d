"""The programs of an attack, as hypothesis makes them, and a run of as many as there is time for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.reliability.attack.actions import PENDING
from tests.reliability.attack.axes.axis import PLAIN, Axis, together
from tests.reliability.attack.scenario import DISTURBANCES, LISTENERS, TEXTS, Scenario, Step
from tests.reliability.attack.world import DOCS, NEW, World


def _stale(doc: int, lock: str, write: str) -> list[Step]:
    """Read, let others write, lock, write: where an old value would be an update that is lost."""
    read, meanwhile = Step("read"), Step("others", "", doc)
    return [read, meanwhile, Step("lock", lock, doc), Step("write", write, doc)]


def _unlocked(doc: int, write: str) -> list[Step]:
    return [Step("commit"), Step("write", write, doc)]


def _given_up(doc: int, lock: str, write: str) -> list[Step]:
    locked = Step("lock", lock, doc)
    return [Step("savepoint"), locked, Step("back to savepoint"), Step("write", write, doc)]


def _ended(doc: int, lock: str, text: str, write: str) -> list[Step]:
    return [Step("lock", lock, doc), Step(text), Step("others", "", doc), Step("write", write, doc)]


def _heard(doc: int, lock: str, how: str, write: str) -> list[Step]:
    """Read, and lock while a listener reads or changes it, before others write."""
    step = Step("listen", how, doc)
    return [Step("read"), step, Step("lock", lock, doc), Step("write", write, doc)]


def _attached(doc: int, lock: str, write: str) -> list[Step]:
    """Write, under the lock, to objects that were read before others have written."""
    before = [Step("read"), Step("forget"), Step("others", "", doc)]
    return [*before, Step("lock", lock, doc), Step("attach"), Step("write", write, doc)]


def _turned(doc: int, turn: str, lock: str, again: str, write: str) -> list[Step]:
    """Lock between two turns, and write."""
    before, after = Step("turn", turn, doc), Step("turn", again, doc)
    return [
        before,
        Step("lock", lock, doc),
        after,
        Step("others", "", doc),
        Step("write", write, doc),
    ]


def _after(doc: int, turn: str, lock: str, write: str) -> list[Step]:
    return [Step("turn", turn, doc), *_stale(doc, lock, write)]


def _believed(doc: int, belief: str, ending: str, write: str) -> list[Step]:
    """Write what was believed before the transaction ended, after others did."""
    turns = Step("turn", belief, doc), Step("turn", ending, doc)
    return [*turns, Step("others", "", doc), Step("write", write, doc)]


def _snapshot(doc: int, belief: str, ending: str, lock: str, write: str) -> list[Step]:
    """Read at the level of another transaction, and lock after others have written."""
    turns = Step("turn", belief, doc), Step("turn", ending, doc), Step("read")
    return [*turns, *_stale(doc, lock, write)[1:]]


@cache
def programs_of(axis: Axis) -> st.SearchStrategy[list[Step]]:
    """Return the programs along an axis."""
    docs = st.sampled_from((*DOCS, NEW) if "inserts" in axis.turns else DOCS)
    lock_names, write_names = (
        st.sampled_from(sorted(axis.locks)),
        st.sampled_from(sorted(axis.writes)),
    )
    texts = st.sampled_from(sorted(TEXTS))
    locks = st.builds(Step, st.just("lock"), lock_names, docs)
    writes = st.builds(Step, st.just("write"), write_names, docs)
    free = st.builds(Step, st.just("free"), st.sampled_from(sorted(axis.free)), docs)
    pending = st.builds(Step, st.just("pending"), st.sampled_from(sorted(PENDING)), docs)
    others = st.builds(Step, st.just("others"), st.just(""), docs)
    disturbances = st.builds(Step, st.sampled_from(DISTURBANCES))
    alone = [locks, locks, writes, writes, free, pending, others, disturbances]
    rounds = [
        st.builds(_stale, docs, lock_names, write_names),
        st.builds(_unlocked, docs, write_names),
        st.builds(_given_up, docs, lock_names, write_names),
        st.builds(_ended, docs, lock_names, texts, write_names),
        st.builds(_heard, docs, lock_names, st.sampled_from(LISTENERS), write_names),
        st.builds(_attached, docs, lock_names, write_names),
    ]
    if axis.turns:
        turns = st.sampled_from(sorted(axis.turns))
        alone += [st.builds(Step, st.just("turn"), turns, docs)] * 2
        rounds += [
            st.builds(_turned, docs, turns, lock_names, turns, write_names),
            st.builds(_after, docs, turns, lock_names, write_names),
        ]
    if axis.endings:
        beliefs = st.sampled_from(sorted(axis.turns.keys() - axis.endings))
        endings = st.sampled_from(sorted(axis.endings))
        rounds += [st.builds(_believed, docs, beliefs, endings, write_names)] * 2
        rounds += [st.builds(_snapshot, docs, beliefs, endings, lock_names, write_names)] * 2
    parts = st.one_of(st.one_of(rounds), st.one_of(alone).map(lambda step: [step]))
    return st.lists(parts, min_size=1, max_size=8).map(
        lambda parts: [step for part in parts for step in part]
    )


@st.composite
def _along(
    draw: st.DrawFn, stages: Sequence[Axis], additions: Sequence[Axis]
) -> tuple[Axis, list[Step]]:
    more = draw(st.lists(st.sampled_from(additions), unique=True, max_size=2)) if additions else []
    axis = together(draw(st.sampled_from(stages)), *more)
    return axis, draw(programs_of(axis))


class Attack:
    """Random programs against one database.

    :param stages: the axes of which each program has one.
    :param additions: the axes of which it has some besides.
    :param shrinks: a program that fails is made as short as can be.
    :ivar run: the number of programs so far, those that shrink a failure included.
    :ivar along: the same by axis.
    """

    def __init__(
        self,
        world: World,
        seed_of_programs: int,
        *,
        stages: Sequence[Axis] = (),
        additions: Sequence[Axis] = (),
        shrinks: bool = True,
    ) -> None:
        self.world, self._seed, self.run = world, seed_of_programs, 0
        self.along: Counter[str] = Counter()
        self._programs = st.tuples(st.just(PLAIN), programs_of(PLAIN))
        if stages or additions:
            here = [axis for axis in stages if world.name in axis.databases]
            self._programs = _along(here or [PLAIN], additions)
        self._phases = set(Phase) - (set() if shrinks else {Phase.shrink, Phase.explain})

    def go_on(self, *, seconds: float = float("inf"), programs_at_most: int = 1_000_000) -> None:
        """Run programs until one fails, which hypothesis then shrinks, or until the end.

        A program that pytest-timeout ends has not failed: shrinking would run it again and again, without a limit.
        """
        end, failed = time.monotonic() + seconds, False
        interruption: BaseException | None = None

        @seed(self._seed)
        @settings(
            max_examples=1_000_000,
            deadline=None,
            database=None,
            print_blob=False,
            phases=self._phases,
            suppress_health_check=list(HealthCheck),
        )
        @given(program=self._programs)
        def attack(program: tuple[Axis, list[Step]]) -> None:
            nonlocal failed, interruption
            if not failed and (time.monotonic() > end or self.run >= programs_at_most):
                raise _TimeIsUp
            axis, steps = program
            self.run += 1
            self.along[axis.name] += 1
            try:
                Scenario(self.world, axis).run(steps)
            except Exception:
                failed = True
                raise
            except BaseException as error:
                interruption = error
                raise _TimeIsUp from error

        with suppress(_TimeIsUp):
            attack()
        if interruption is not None:
            raise interruption


class _TimeIsUp(BaseException):
    """The end of a run in which nothing was found; no Exception, which hypothesis would shrink."""
