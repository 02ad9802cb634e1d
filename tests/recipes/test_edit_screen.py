"""An edit screen: what a user saves is computed from what is stored, and nobody's change is overwritten."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import CheckedOut, CheckoutLost, StaleDocument
from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once, breaks, without

WITHOUT = {
    "version": ("ident, version=version)", "ident)"),
    "check-out": ("session.check_out(Order, ident, user)", "session.take_over(Order, ident, user)"),
}


def add_by_version(program: Any) -> None:
    total, version = program.show(1)
    program.save(1, total + 1, version)


def add_by_check_out(program: Any, user: str) -> None:
    total, epoch = program.check_out(1, user)
    program.check_in(1, user, total + 1, epoch)


def start(program: Any) -> None:
    with program.Session.begin() as session, session.unguarded():
        session.execute(sa.delete(program.table))
        session.execute(sa.delete(program.Order))
        session.add(program.Order(id=1, total=0))


def load_versions(program: Any) -> None:
    start(program)
    answers = at_once([partial(add_by_version, program)] * 60, StaleDocument)
    saved = without(StaleDocument, of=answers)
    assert saved
    assert program.show(1)[0] == len(saved)


def load_check_outs(program: Any) -> None:
    start(program)
    users = [partial(add_by_check_out, program, f"user {n}") for n in range(60)]
    answers = at_once(users, CheckedOut)
    saved = without(CheckedOut, of=answers)
    assert saved
    assert program.show(1)[0] == len(saved)


@pytest.mark.slow
def test_a_version_keeps_who_has_seen_an_older_one_from_saving(recipe: Recipe) -> None:
    load_versions(recipe("edit-screen"))


@pytest.mark.slow
def test_a_check_out_keeps_the_others_out(recipe: Recipe) -> None:
    load_check_outs(recipe("edit-screen"))


@pytest.mark.databases("postgresql")
def test_without_the_version_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("edit-screen", WITHOUT["version"])
    assert breaks(lambda: load_versions(program), StaleDataError)


@pytest.mark.databases("postgresql")
def test_without_the_check_out_work_is_in_vain(recipe: Recipe) -> None:
    program = recipe("edit-screen", WITHOUT["check-out"])
    assert breaks(lambda: load_check_outs(program), CheckoutLost)


def test_who_guesses_the_epoch_saves_nothing(recipe: Recipe) -> None:
    program = recipe("edit-screen")
    start(program)
    total, epoch = program.check_out(1, "ann")
    for guess in range(epoch + 2):
        with pytest.raises(CheckoutLost):
            program.check_in(1, "bob", total + 1, guess)
    program.check_in(1, "ann", total + 2, epoch)
    assert program.show(1)[0] == total + 2
