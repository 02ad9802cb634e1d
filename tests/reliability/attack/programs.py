"""The programs of an attack, as hypothesis makes them, and a run of as many as there is time for."""

from __future__ import annotations

import time
from contextlib import suppress

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.reliability.attack.actions import FREE, LOCKS, PENDING, WRITES
from tests.reliability.attack.models import DOCS
from tests.reliability.attack.scenario import DISTURBANCES, LISTENERS, TEXTS, Scenario, Step
from tests.reliability.attack.world import World

docs = st.sampled_from(DOCS)
locks = st.builds(Step, st.just("lock"), st.sampled_from(sorted(LOCKS)), docs)
writes = st.builds(Step, st.just("write"), st.sampled_from(sorted(WRITES)), docs)
free = st.builds(Step, st.just("free"), st.sampled_from(sorted(FREE)), docs)
pending = st.builds(Step, st.just("pending"), st.sampled_from(sorted(PENDING)), docs)
others = st.builds(Step, st.just("others"), st.just(""), docs)
disturbances = st.builds(Step, st.sampled_from(DISTURBANCES))


lock_names, write_names = st.sampled_from(sorted(LOCKS)), st.sampled_from(sorted(WRITES))
texts = st.sampled_from(sorted(TEXTS))


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


rounds = st.one_of(
    st.builds(_stale, docs, lock_names, write_names),
    st.builds(_unlocked, docs, write_names),
    st.builds(_given_up, docs, lock_names, write_names),
    st.builds(_ended, docs, lock_names, texts, write_names),
    st.builds(_heard, docs, lock_names, st.sampled_from(LISTENERS), write_names),
    st.builds(_attached, docs, lock_names, write_names),
)
steps_alone = st.one_of(locks, locks, writes, writes, free, pending, others, disturbances)
programs = st.lists(
    st.one_of(rounds, steps_alone.map(lambda step: [step])), min_size=1, max_size=8
).map(lambda parts: [step for part in parts for step in part])


class Attack:
    """Random programs against one database.

    :param shrinks: a program that fails is made as short as can be.
    :ivar run: the number of programs so far, those that shrink a failure included.
    """

    def __init__(self, world: World, seed_of_programs: int, *, shrinks: bool = True) -> None:
        self.world, self._seed, self.run = world, seed_of_programs, 0
        self._phases = set(Phase) - (set() if shrinks else {Phase.shrink, Phase.explain})

    def go_on(self, *, seconds: float = float("inf"), programs_at_most: int = 1_000_000) -> None:
        """Run programs until one fails, which hypothesis then shrinks, or until the end."""
        end, failed = time.monotonic() + seconds, False

        @seed(self._seed)
        @settings(
            max_examples=1_000_000,
            deadline=None,
            database=None,
            print_blob=False,
            phases=self._phases,
            suppress_health_check=list(HealthCheck),
        )
        @given(steps=programs)
        def attack(steps: list[Step]) -> None:
            nonlocal failed
            if not failed and (time.monotonic() > end or self.run >= programs_at_most):
                raise _TimeIsUp
            self.run += 1
            try:
                Scenario(self.world).run(steps)
            except BaseException:
                failed = True
                raise

        with suppress(_TimeIsUp):
            attack()


class _TimeIsUp(BaseException):
    """The end of a run in which nothing was found; no Exception, which hypothesis would shrink."""
