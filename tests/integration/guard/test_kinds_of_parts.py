"""Each way of mapping a document and its parts is guarded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from sa_doclock import LockingSession
from tests.integration.guard.models import (
    Book,
    Contract,
    Entry,
    Lease,
    Plan,
    Seal,
    Shelf,
    Step,
    Terms,
    Voucher,
)
from tests.integration.guard.steps import Action, count, hold, refused, writes_sent


class Case(NamedTuple):
    action: Action
    entity: type[Any]
    ident: Any
    words: tuple[str, ...] = ()


def change(entity: type[Any], ident: Any, **values: object) -> Action:
    def step(session: LockingSession) -> Any:
        found = session.get_one(entity, ident)
        for name, value in values.items():
            setattr(found, name, value)
        return found

    return step


def delete(entity: type[Any], ident: Any) -> Action:
    def step(session: LockingSession) -> Any:
        session.delete(found := session.get_one(entity, ident))
        return found

    return step


def add(entity: type[Any], **values: object) -> Action:
    def step(session: LockingSession) -> Any:
        session.add(one := entity(**values))
        return one

    return step


def act_on_contract(act: Callable[[Contract], None]) -> Action:
    def step(session: LockingSession) -> Any:
        act(contract := session.get_one(Contract, 1))
        return contract

    return step


def new_terms(contract: Contract) -> None:
    contract.terms = Terms(id=9, text="new")


def no_terms(contract: Contract) -> None:
    contract.terms = None


def new_seal(contract: Contract) -> None:
    contract.seal = Seal(id=9, text="blue")


def no_seal(contract: Contract) -> None:
    contract.seal = None


def substep_added(session: LockingSession) -> Any:
    (step := session.get_one(Step, 111)).substeps.append(Step(id=1111))
    return step


def whole_voucher(session: LockingSession) -> Any:
    voucher = session.get_one(Voucher, (2024, 1))
    voucher.entries = [Entry(id=8), Entry(id=9)]
    return voucher


CASES: dict[str, Case] = {
    "column of the base class": Case(
        change(Lease, 1, total=1), Contract, 1, ("Lease 1", "'total'")
    ),
    "column of the subclass": Case(change(Lease, 1, rent=1), Contract, 1, ("Lease 1", "'rent'")),
    "base class": Case(change(Contract, 2, total=1), Contract, 2, ("Contract 2",)),
    "delete of a subclass": Case(delete(Lease, 1), Contract, 1),
    "seal changed": Case(change(Seal, 1, text="x"), Contract, 1, ("Seal 1", "'text'")),
    "seal deleted": Case(delete(Seal, 1), Contract, 1, ("Seal 1", "deleted")),
    "seal inserted": Case(add(Seal, id=9, contract_id=2, text="x"), Contract, 2, ("Seal",)),
    "seal replaced": Case(act_on_contract(new_seal), Contract, 1),
    "seal taken away": Case(act_on_contract(no_seal), Contract, 1),
    "terms changed": Case(change(Terms, 2, text="x"), Contract, 2, ("Terms 2", "'text'")),
    "terms deleted": Case(delete(Terms, 1), Contract, 1),
    "terms replaced": Case(act_on_contract(new_terms), Contract, 1),
    "terms taken away": Case(act_on_contract(no_terms), Contract, 1),
    "terms by foreign key": Case(change(Contract, 1, terms_id=None), Contract, 1, ("'terms_id'",)),
    "composite header": Case(
        change(Voucher, (2024, 2), total=1), Voucher, (2024, 2), ("Voucher (2024, 2)", "'total'")
    ),
    "composite part": Case(change(Entry, 1, value=1), Voucher, (2024, 1), ("Entry 1", "'value'")),
    "composite new part": Case(add(Entry, id=9, year=2024, number=2), Voucher, (2024, 2)),
    "composite, all parts": Case(whole_voucher, Voucher, (2024, 1)),
    "composite deleted": Case(delete(Voucher, (2024, 1)), Voucher, (2024, 1)),
    "step": Case(change(Step, 1, value=1), Plan, 1, ("Step 1", "'value'")),
    "step of a step": Case(change(Step, 11, value=1), Plan, 1, ("Step 11", "'value'")),
    "step of a step of a step": Case(change(Step, 111, value=1), Plan, 1, ("Step 111",)),
    "new step": Case(add(Step, id=9, plan_id=2), Plan, 2),
    "new step of a step": Case(substep_added, Plan, 1),
    "new step by foreign key": Case(add(Step, id=9, parent_id=111), Plan, 1),
    "deleted step": Case(delete(Step, 111), Plan, 1, ("Step 111", "deleted")),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
def test_without_the_lock_it_is_refused(session: LockingSession, case: Case) -> None:
    kept = case.action(session)
    with refused(session, case.entity, case.ident, *case.words):
        session.flush()
    assert kept


@each_case
def test_with_the_lock_it_goes_through(session: LockingSession, case: Case) -> None:
    held = hold(session, case.entity, case.ident)
    kept = case.action(session)
    if isinstance(kept, Terms) and kept in session.deleted:
        held[0].terms = None
    with writes_sent(session) as sent:
        session.commit()
    assert sent
    assert held


@each_case
def test_the_lock_of_another_is_no_help(session: LockingSession, case: Case) -> None:
    others = {Contract: (1, 2), Plan: (1, 2), Voucher: ((2024, 1), (2024, 2))}[case.entity]
    held = hold(session, case.entity, *(one for one in others if one != case.ident))
    kept = case.action(session)
    with refused(session, case.entity, case.ident):
        session.flush()
    assert all((held, kept))


def test_a_seal_that_moves_needs_both_contracts(session: LockingSession) -> None:
    for held, missing in ((1, 2), (2, 1)):
        contract = hold(session, Contract, held)
        (seal := session.get_one(Seal, 1)).contract_id = 2
        with refused(session, Contract, missing):
            session.flush()
        session.rollback()
        assert all((contract, seal))
    both = hold(session, Contract, 1, 2)
    (seal := session.get_one(Seal, 1)).contract_id = 2
    session.commit()
    assert both


def test_terms_that_change_hands_need_both_contracts(session: LockingSession) -> None:
    for held, missing in ((1, 2), (2, 1)):
        kept = hold(session, Contract, held)
        first, second = (session.get_one(Contract, ident) for ident in (1, 2))
        first.terms_id, second.terms_id = second.terms_id, first.terms_id
        with refused(session, Contract, missing):
            session.flush()
        session.rollback()
        assert all((kept, first, second))


def test_what_was_taken_away_is_deleted_under_the_lock(session: LockingSession) -> None:
    (contract,) = hold(session, Contract, 1)
    contract.terms = contract.seal = None
    session.commit()
    assert count(session, Terms) == 1
    assert count(session, Seal) == 0


# --------------------------------------------------------------------------------------------------
# Parts that are never loaded: their collection's own statements write them.

WriteOnlyAction = Callable[[LockingSession], object]


def add_write_only(session: LockingSession) -> object:
    (shelf := session.get_one(Shelf, 1)).books.add(Book(id=9))
    return shelf


def remove(session: LockingSession) -> object:
    shelf, book = session.get_one(Shelf, 1), session.get_one(Book, 1)
    shelf.books.remove(book)
    return shelf, book


def insert(session: LockingSession) -> object:
    return session.execute(session.get_one(Shelf, 1).books.insert(), [{"id": 8}, {"id": 9}])


def update(session: LockingSession) -> object:
    return session.execute(session.get_one(Shelf, 1).books.update().values(pages=1))


def delete_write_only(session: LockingSession) -> object:
    return session.execute(session.get_one(Shelf, 1).books.delete())


def delete_shelf(session: LockingSession) -> object:
    session.delete(shelf := session.get_one(Shelf, 1))
    return shelf


ACTIONS: tuple[WriteOnlyAction, ...] = (add_write_only, remove, insert, update, delete_write_only)
each_action = pytest.mark.parametrize("action", ACTIONS)


@each_action
def test_the_lock_is_needed(session: LockingSession, action: WriteOnlyAction) -> None:
    held = hold(session, Shelf, 2)
    kept: list[object] = []
    with refused(session, Shelf, 1):
        kept.append(action(session))
        session.flush()
    assert held


@each_action
def test_with_the_lock_it_goes_through_write_only(
    session: LockingSession, action: WriteOnlyAction
) -> None:
    held = hold(session, Shelf, 1)
    with writes_sent(session) as sent:
        kept = action(session)
        session.commit()
    assert sent
    assert all((held, kept))


def test_a_part_that_moves_needs_both(session: LockingSession) -> None:
    for held, missing in ((1, 2), (2, 1)):
        kept = hold(session, Shelf, held)
        shelf, book = session.get_one(Shelf, 2), session.get_one(Book, 1)
        shelf.books.add(book)
        with refused(session, Shelf, missing):
            session.flush()
        session.rollback()
        assert kept


def test_a_shelf_is_deleted_under_its_lock_and_its_books_are_not_loaded(
    session: LockingSession,
) -> None:
    shelf = delete_shelf(session)
    with refused(session, Shelf, 1):
        session.flush()
    session.rollback()
    (shelf,) = hold(session, Shelf, 1)
    session.delete(shelf)
    with writes_sent(session) as sent:
        session.flush()
    assert len(sent) == 1
