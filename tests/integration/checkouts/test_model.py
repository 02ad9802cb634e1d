"""Check-outs against a model: hypothesis writes the programs, and the model predicts each result.

The invariants: a document has at most one valid owner; epochs grow; a write under an old epoch is
never committed; a rolled-back check-out never existed; an expired check-out frees the document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy.orm import sessionmaker

from sa_doclock import CheckedOut, Checkout, CheckoutLost, LockingSession, LockOptions
from tests.integration.checkouts.models import CHECKOUTS, Order, expire

IDENTS, OWNERS = (1, 2), ("ann", "bob", "cat")
idents, owners, commits = st.sampled_from(IDENTS), st.sampled_from(OWNERS), st.booleans()


@dataclass
class Known:
    """The state of a document in the model."""

    epoch: int = 0
    owner: str | None = None  # None: it was checked in, or never checked out
    expired: bool = False
    writes: int = 0

    @property
    def valid(self) -> bool:
        return self.owner is not None and not self.expired

    def taken_by(self, owner: str, *, by_force: bool) -> Known:
        keeps = self.valid and self.owner == owner and not by_force
        return Known(
            self.epoch if keeps else self.epoch + 1, owner, expired=False, writes=self.writes
        )


class Machine(RuleBasedStateMachine):
    def __init__(self, engine: sa.Engine, factory: sessionmaker[LockingSession]) -> None:
        super().__init__()
        self.engine, self.factory = engine, factory
        self.known = {ident: Known() for ident in IDENTS}
        self.given: list[Checkout] = []
        with engine.begin() as connection:
            connection.execute(sa.delete(CHECKOUTS))
            connection.execute(sa.update(Order).values(total=0))

    def ended(self, session: LockingSession, ident: int, then: Known, *, commit: bool) -> None:
        if commit:
            session.commit()
            self.known[ident] = then
        else:
            session.rollback()

    @rule(ident=idents, owner=owners, commit=commits, by_force=st.booleans())
    def check_out(self, ident: int, owner: str, *, commit: bool, by_force: bool) -> None:
        before = self.known[ident]
        refused = before.valid and before.owner != owner and not by_force
        with self.factory() as session:
            take = session.take_over if by_force else session.check_out
            if refused:
                with pytest.raises(CheckedOut) as caught:
                    take(Order, ident, owner)
                assert caught.value.checkout is not None
                assert caught.value.checkout.owner == before.owner
                return
            got = take(Order, ident, owner)
            then = before.taken_by(owner, by_force=by_force)
            assert (got.epoch, got.owner) == (then.epoch, owner)
            self.ended(session, ident, then, commit=commit)
            if commit or got.epoch == before.epoch:
                self.given.append(got)

    @rule(
        number=st.integers(0, 50), commit=commits, action=st.sampled_from(["renew", "in", "save"])
    )
    def use(self, number: int, *, commit: bool, action: str) -> None:
        """Renew, check in or save with any earlier check-out."""
        if not self.given:
            return
        mine = self.given[number % len(self.given)]
        before = self.known[mine.ident]
        good = before.owner is not None and before.epoch == mine.epoch
        with self.factory() as session:
            if not good:
                with pytest.raises(CheckoutLost) as caught:
                    self.act(session, action, mine)
                assert caught.value.expected == mine.epoch
                assert caught.value.found == (None if before.owner is None else before.epoch)
                return
            self.act(session, action, mine)
            self.ended(session, mine.ident, self.after(before, action), commit=commit)

    def act(self, session: LockingSession, action: str, mine: Checkout) -> None:
        if action == "renew":
            session.renew(mine)
        elif action == "in":
            session.check_in(mine)
        else:
            order = session.get_one_entity(
                Order, mine.ident, LockOptions.ForUpdate, checkout=mine.epoch
            )
            order.total += 1
            session.flush()

    def after(self, before: Known, action: str) -> Known:
        if action == "renew":
            return Known(before.epoch, before.owner, expired=False, writes=before.writes)
        if action == "in":
            return Known(before.epoch, writes=before.writes)
        return Known(before.epoch, before.owner, before.expired, before.writes + 1)

    @rule(ident=idents, adopted=st.booleans())
    def write_without_a_check_out(self, ident: int, *, adopted: bool) -> None:
        with self.factory() as session:

            def lock() -> Any:
                if adopted:
                    statement = sa.select(Order).where(Order.id == ident).with_for_update()
                    return session.scalars(statement).one()
                return session.get_one_entity(Order, ident, LockOptions.ForUpdate)

            if self.known[ident].valid:
                with pytest.raises(CheckedOut):
                    lock()
                return
            lock().total += 1
            session.commit()
            self.known[ident].writes += 1

    @rule()
    def time_passes(self) -> None:
        expire(self.engine)
        for known in self.known.values():
            known.expired = known.owner is not None

    @invariant()
    def the_database_has_what_the_model_says(self) -> None:
        with self.factory() as session:
            for ident, known in self.known.items():
                found = session.checkout_of(Order, ident)
                assert (None if found is None else (found.owner, found.epoch)) == (
                    (known.owner, known.epoch) if known.valid else None
                )
                assert session.get_one(Order, ident).total == known.writes
            valid = {ident for ident, known in self.known.items() if known.valid}
            assert {one.ident for one in session.checkouts()} == valid
            open_ = {ident for ident, known in self.known.items() if known.owner is not None}
            assert {one.ident for one in session.checkouts(expired=True)} == open_


@pytest.mark.slow
@pytest.mark.databases("sqlite", "postgresql")
def test_programs_of_check_outs(engine: sa.Engine, factory: sessionmaker[LockingSession]) -> None:
    run_state_machine_as_test(
        cast("Any", lambda: Machine(engine, factory)),
        settings=settings(
            max_examples=20,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
