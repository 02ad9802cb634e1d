"""The database after it all, compared with the logs: nothing lost, nothing half there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select

from tests.reliability.faults.log import Attempt, Log
from tests.reliability.faults.model import FOLDERS, Folder, Mark, Sheet
from tests.reliability.history.checker import check
from tests.reliability.history.record import History, Outcome, Read

Marks = Mapping[int, Mapping[int, int]]
"""By attempt: by folder, the change of its total."""

_TOTALS = select(Folder.id, Folder.total)
_SUMS = select(Sheet.folder_id, func.sum(Sheet.value).label("total")).group_by(Sheet.folder_id)


@dataclass
class Found:
    """The errors found, each in words.

    :ivar lost: acknowledged, and not there.
    :ivar inconsistent: what does not add up, or is there in part, twice, or against an error.
    """

    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    inconsistent: list[str] = field(default_factory=list)


def look_on_disk(connection: Connection, log: Log, *, was_killed: bool = False) -> Found:
    """Compare; the connection is a fresh one.

    :param was_killed: the server, in the meantime.
    """
    marks = _marks(connection)
    attempts = list(log.updates())
    found = Found(sum(attempt.acknowledged for attempt in attempts))
    found.lost += _lost(attempts, marks)
    found.inconsistent += [
        *log.broken_reads,
        *_half_there(attempts, marks),
        *_twice(attempts, marks),
        *_not_adding_up(connection, marks),
    ]
    lost = _decide(attempts, marks)
    history = History(
        attempt.transaction
        for attempt in log.attempts
        if not (was_killed and _saw_too_much(attempt, lost))
    )
    found.inconsistent += map(str, check(history))
    return found


def _marks(connection: Connection) -> Marks:
    marks: dict[int, dict[int, int]] = defaultdict(dict)
    for attempt, folder, delta in connection.execute(
        select(Mark.attempt, Mark.folder_id, Mark.delta)
    ):
        marks[attempt][folder] = delta
    return marks


def _lost(attempts: Iterable[Attempt], marks: Marks) -> Iterator[str]:
    for attempt in attempts:
        if attempt.acknowledged and not marks.get(attempt.number):
            yield f"attempt {attempt.number} was acknowledged and is not there"


def _half_there(attempts: Iterable[Attempt], marks: Marks) -> Iterator[str]:
    for attempt in attempts:
        there = marks.get(attempt.number)
        if there and there != attempt.marks:
            yield f"attempt {attempt.number} meant {attempt.marks}, and left {there}"
        elif there and attempt.outcome is Outcome.ABORTED:
            yield f"attempt {attempt.number} failed before its commit, and is there"


def _twice(attempts: Iterable[Attempt], marks: Marks) -> Iterator[str]:
    there = Counter(attempt.update for attempt in attempts if marks.get(attempt.number))
    for update, times in there.items():
        if times > 1:
            yield f"update {update} was done {times} times"


def _not_adding_up(connection: Connection, marks: Marks) -> Iterator[str]:
    totals = {row.id: row.total for row in connection.execute(_TOTALS)}
    sums = {row.folder_id: row.total for row in connection.execute(_SUMS)}
    for folder in FOLDERS:
        marked = sum(deltas.get(folder, 0) for deltas in marks.values())
        if not totals[folder] == sums[folder] == marked:
            yield (
                f"folder {folder} has the total {totals[folder]}, sheets of {sums[folder]}, and "
                f"marks of {marked}"
            )


def _decide(attempts: Sequence[Attempt], marks: Marks) -> set[int]:
    """Decide the outcome of each commit whose answer was lost; its time stays unknown.

    :returns: the attempts that are not there.
    """
    ticks = (max(one.transaction.began, one.transaction.ended) for one in attempts)
    last = max(ticks, default=0)
    unknown = [attempt for attempt in attempts if attempt.outcome is Outcome.UNKNOWN]
    for attempt in unknown:
        there = bool(marks.get(attempt.number))
        attempt.transaction.outcome = Outcome.COMMITTED if there else Outcome.ABORTED
        attempt.transaction.ended = last + 1
    return {attempt.number for attempt in unknown if not marks.get(attempt.number)}


def _saw_too_much(attempt: Attempt, lost: set[int]) -> bool:
    """Return whether a reader saw a commit that was on no disk yet when the server was killed.

    InnoDB gives up the locks of a transaction, and shows what it wrote, before its log is
    flushed.  Who has only read needs no flush; who has written is on disk behind it, or not.
    """
    reads = (one for one in attempt.transaction.operations if isinstance(one, Read))
    return not attempt.update and any(one.version.writer in lost for one in reads)
