"""The stress run of the command line, with workers that record what they read and write."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Engine

from sa_doclock import LockingSession
from sa_doclock.tools.cli.workload import Operation, Outcome, Plan, run, runner
from sa_doclock.tools.cli.workload.plan import Step
from sa_doclock.tools.cli.workload.runner import Worker
from sa_doclock.tools.cli.workload.tables import NAMES, Document, State
from tests.reliability.history import record, stored


class VersionedPlan(Plan):
    """The same steps; every value says who wrote it."""

    def first_states(self) -> dict[int, State]:
        return {number: stored.first_state(NAMES) for number in range(self.documents)}


@dataclass
class Recorder:
    """The state that all workers share.

    :ivar meet: called by each worker after its first read.
    """

    meet: Callable[[], object]
    tick: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    number: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    done: list[record.Transaction] = field(default_factory=list)


class RecordingWorker(Worker):
    """A worker that writes versions in place of the step's values."""

    def __init__(self, recorder: Recorder, *how: Any) -> None:
        super().__init__(*how)
        self._recorder = recorder
        self._has_met = False

    def _attempt(self, step: Step) -> None:
        recorder = self._recorder
        self._done = record.Transaction(recorder.number(), recorder.tick(), 0)
        self._done.outcome = record.Outcome.ABORTED
        try:
            super()._attempt(step)
            self._done.outcome = record.Outcome.COMMITTED
        finally:
            self._done.ended = recorder.tick()
            recorder.done.append(self._done)

    def _read(self, session: LockingSession, step: Step) -> tuple[Document, float]:
        document, waited = super()._read(session, step)
        stored.note(self._done, document, NAMES)
        if step.operation is Operation.LOAD:
            stored.read_again(session, self._done, [document.id], NAMES)
        if not self._has_met:
            self._has_met = True
            self._recorder.meet()
        return document, waited

    def _change(self, session: LockingSession, document: Document, step: Step) -> None:
        history = self.histories[step.document]
        _CHANGES[step.operation](self._done, document, step)
        stored.balance(document)
        number = history.announce(document.values())
        self._done.committing = self._recorder.tick()
        session.save_changes()
        history.committed(number)


def _upsert(done: record.Transaction, document: Document, step: Step) -> None:
    stored.set_total(done, document, 1)
    stored.set_detail(done, document, step.name, 1)


def _delete(done: record.Transaction, document: Document, step: Step) -> None:
    stored.set_total(done, document, 1)
    stored.delete_detail(done, document, step.name, 1)


def _move(done: record.Transaction, document: Document, step: Step) -> None:
    """The header is left alone."""
    stored.set_detail(done, document, step.name, 1)
    stored.set_detail(done, document, step.other, 1)


_CHANGES: Mapping[Operation, Callable[[record.Transaction, Document, Step], None]] = {
    Operation.UPSERT: _upsert,
    Operation.DELETE: _delete,
    Operation.MOVE: _move,
}


def recorded(
    engine: Engine, plan: VersionedPlan, monkeypatch: pytest.MonkeyPatch
) -> tuple[Outcome, record.History]:
    """Carry out the plan; return what the fixture says of it, and the history.

    Without locks all workers meet once, after they have read, so that what goes wrong then goes
    wrong in every run.
    """
    together = threading.Barrier(plan.threads)
    recorder = Recorder((lambda: None) if plan.locks else (lambda: together.wait(30)))
    monkeypatch.setattr(runner, "Worker", lambda *how: RecordingWorker(recorder, *how))
    outcome = run(engine, plan)
    return outcome, record.History(recorder.done, stored.final_state(engine))
