"""Processes that change the same file are killed at any moment."""

from __future__ import annotations

import random

import pytest

from tests.reliability import Soak
from tests.reliability.faults.sqlite.conftest import File
from tests.reliability.faults.sqlite.processes import started, wait_a_moment
from tests.reliability.faults.sqlite.worker import change_folders

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.databases("sqlite")]


@pytest.mark.slow
def test_two_processes_are_killed_in_or_about_a_commit(file: File, soak: Soak) -> None:
    chance = random.Random("two processes")
    row = file.row("processes killed by SIGKILL")
    for number in soak.rounds(short=4, share=0.6):
        with (
            started(change_folders, *file.whose()) as victim,
            started(change_folders, *file.whose()) as other,
        ):
            victim.wait_for_reports(chance.randint(1, 6))
            wait_a_moment(chance)
            victim.kill()
            other.wait_for_reports(2)  # who is not kept from going on
            wait_a_moment(chance)
        row.injected += 2
        acknowledged = file.verify(row)
        if number % 20 == 0:
            soak.progress(
                f"{file.column}: {row.injected} processes killed, {acknowledged} updates there"
            )
    assert acknowledged > 0
