"""A client changes the folders that it holds, and reads them; recorded as a history."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sa_doclock import LockingSession
from tests.reliability.faults.log import Attempt, Log
from tests.reliability.faults.model import Folder, Mark
from tests.reliability.history.record import Item, Read, Version, Write

#: The largest change of a value.
LARGEST = 9


def look(log: Log, attempt: Attempt, folders: Sequence[Folder]) -> None:
    """Read folders whole; what does not add up is a broken read."""
    operations = attempt.transaction.operations
    for folder in folders:
        total, values = folder.total, [sheet.value for sheet in folder.sheets]
        if total != sum(values):
            log.broken_reads.append(f"attempt {attempt.number}, folder {folder.id}: {total}")
        operations.append(Read(Item(folder.id), _version(folder.writer)))
        operations += [
            Read(Item(folder.id, str(sheet.number)), _version(sheet.writer))
            for sheet in folder.sheets
        ]


def change(
    session: LockingSession, attempt: Attempt, folders: Sequence[Folder], chance: random.Random
) -> None:
    """Change a sheet of each folder, and the totals; two folders give to each other."""
    delta = chance.randint(1, LARGEST)
    for folder, sign in zip(folders, (1, -1), strict=False):
        sheet = chance.choice(folder.sheets)
        attempt.marks[folder.id] = sign * delta
        for row, part in ((sheet, str(sheet.number)), (folder, "")):
            write = Write(Item(folder.id, part), Version(attempt.number), _version(row.writer))
            attempt.transaction.operations.append(write)
            row.writer = attempt.number
        sheet.value += sign * delta
        folder.total += sign * delta
        session.add(
            Mark(
                attempt=attempt.number,
                folder_id=folder.id,
                update=attempt.update,
                delta=sign * delta,
            )
        )


def _version(writer: int) -> Version:
    return Version(writer) if writer else Version(0, 0)
