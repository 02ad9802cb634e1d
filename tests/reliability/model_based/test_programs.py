"""Short programs that the machine must not depend on chance to try."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.reliability.model_based.docs import Kind
from tests.reliability.model_based.engines import ForUpdate, SnapshotRead
from tests.reliability.model_based.test_machine import Machine
from tests.reliability.model_based.world import World
from tests.support.databases import Database


def reads_before_another_changes(machine: Machine) -> None:
    machine.read(doc=1)
    machine.b_does_it_all(doc=1, to=1, kind=Kind.SHIFT, pick=0)
    machine.lock(docs=[1], lock=ForUpdate, way="entity", at_once=1)


def writes_in_a_snapshot(machine: Machine) -> None:
    machine.lock(docs=[1], lock=SnapshotRead, way="document", at_once=1)
    machine.change(doc=1, to=1, kind=Kind.ADD, pick=0, keep=True)
    machine.flush()


def reads_the_whole_of_what_it_has_changed(machine: Machine) -> None:
    machine.lock(docs=[1], lock=ForUpdate, way="document", at_once=1)
    machine.change(doc=1, to=1, kind=Kind.ADD, pick=0, keep=True)
    machine.read_what_is_held(whole=True)


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.parametrize(
    "program",
    [reads_before_another_changes, writes_in_a_snapshot, reads_the_whole_of_what_it_has_changed],
)
def test_a_program_breaks_no_promise(
    database: Database, program: Callable[[Machine], None]
) -> None:
    world = World(database)
    machine: Machine = type("Program", (Machine,), {"world": world})()
    try:
        program(machine)
        machine.every_promise_is_kept()
    finally:
        machine.teardown()
        world.close()
