"""One line before each download: content, source, size and licence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.running.progress import progress, say
from lab.servers.model import UnavailableError

VARIABLE = "SA_DOCLOCK_TEST_PROPRIETARY"


@dataclass(frozen=True)
class Download:
    """Something to download.

    :ivar source: in words, such as ``PyPI``.
    :ivar size: bytes.
    """

    what: str
    source: str
    size: int
    licence: str

    def __str__(self) -> str:
        return f"{self.what}, from {self.source}: {_megabytes(self.size)}, {self.licence}"


@contextmanager
def downloading(*downloads: Download, folder: Path) -> Iterator[None]:
    """Print a line for each download, then the progress while the block downloads them.

    :param folder: the folder whose files grow meanwhile.
    """
    for one in downloads:
        say(f"Downloading {one}")
    names = " and ".join(one.what for one in downloads)
    total = _megabytes(sum(one.size for one in downloads))
    with progress(lambda: f"{names}: {_megabytes(_size_of(folder))} of {total}"):
        yield


def refuse_proprietary(what: str) -> None:
    """Treat proprietary software as missing, if the environment says so.

    :raises UnavailableError: ``SA_DOCLOCK_TEST_PROPRIETARY=no``.
    :raises ValueError: the variable is neither ``yes`` nor ``no``.
    """
    allowed = os.environ.get(VARIABLE, "yes")
    if allowed not in {"yes", "no"}:
        msg = f"{VARIABLE} is {allowed!r}; it can be 'yes' or 'no'"
        raise ValueError(msg)
    if allowed == "no":
        msg = f"{VARIABLE}=no, and {what} is proprietary"
        raise UnavailableError(msg)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e7 else f"{size / 1e6:.0f} MB"


def _size_of(folder: Path) -> int:
    """Return the bytes of all files; a file may disappear during the count."""
    return sum(
        _size_of_file(Path(where, name)) for where, _, names in os.walk(folder) for name in names
    )


def _size_of_file(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
