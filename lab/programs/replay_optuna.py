"""explore() on Optuna's storage: two workers take one waiting trial, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from doclock_audit import Exploration, explore


def replays(folder: str) -> Iterator[Exploration]:
    """Run the orders in which two workers call set_trial_state_values(trial, RUNNING).

    Optuna locks the trial's row with with_for_update(), which SQLite ignores.
    """
    optuna = import_module("optuna")
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/optuna.db")
    study = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE])
    waiting = optuna.trial.create_trial(state=optuna.trial.TrialState.WAITING)
    trial: list[int] = []

    def enqueue() -> None:
        trial[:] = [storage.create_new_trial(study, template_trial=waiting)]

    def take() -> Any:
        return storage.set_trial_state_values(trial[0], optuna.trial.TrialState.RUNNING)

    def one_has_it(first: Any, second: Any) -> None:
        assert [first.value, second.value] != [True, True], "both workers have taken the trial"

    yield explore(take, take, before=enqueue, invariant=one_has_it)
