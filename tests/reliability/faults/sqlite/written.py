"""The log of a process that is going to be killed: on disk, each line before it counts."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.reliability.faults.log import Attempt, Log, is_typed
from tests.reliability.history.transactions import Outcome, Transaction


class WrittenLog(Log):
    """A log that is in a file as well.

    :param first: the number of the first attempt; those of another process are others.
    """

    def __init__(self, path: Path, first: int) -> None:
        super().__init__(_tick=itertools.count(first).__next__)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def means(self, attempt: Attempt) -> None:
        """Write what is about to be committed."""
        self._write(number=attempt.number, update=attempt.update, marks=attempt.marks)

    def acknowledge(self, attempt: Attempt) -> None:
        """Write that it is committed."""
        if attempt.update:
            self._write(acknowledged=attempt.number)
        super().acknowledge(attempt)

    def reached_client(self, error: BaseException, *injected: type[BaseException]) -> None:
        """Write which error it was."""
        self._write(error=type(error).__name__, typed=is_typed(error), text=repr(error))
        super().reached_client(error, *injected)

    def _write(self, **reported: Any) -> None:
        os.write(self._file, json.dumps(reported).encode() + b"\n")
        os.fsync(self._file)


def read_logs(paths: Iterable[Path]) -> Log:
    """Put the logs of all processes together; what is not acknowledged may be committed or not."""
    log = Log()
    attempts: dict[int, Attempt] = {}
    for path in paths:
        for line in path.read_text("ascii").splitlines():
            reported = json.loads(line)
            if "number" in reported:
                attempts[reported["number"]] = _meant(reported)
            elif "acknowledged" in reported:
                attempts[reported["acknowledged"]].transaction.outcome = Outcome.COMMITTED
            else:
                log.errors[reported["error"]] += 1
                if not reported["typed"]:
                    log.foreign.append(AssertionError(reported["text"]))
    log.attempts += attempts.values()
    return log


def _meant(reported: dict[str, Any]) -> Attempt:
    number = reported["number"]
    # All at the same time: the processes have no clock in common.
    transaction = Transaction(number, began=0, ended=1, outcome=Outcome.UNKNOWN)
    marks = {int(folder): delta for folder, delta in reported["marks"].items()}
    return Attempt(number, reported["update"], transaction, marks, commit_sent=True)
