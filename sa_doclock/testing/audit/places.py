"""Places: the lines of the program that a statement, an assignment or a lock comes from."""

from __future__ import annotations

import site
import sysconfig
from os import sep
from types import FrameType
from typing import Final, NamedTuple

from ...caller import frames, is_of_library


class Place(NamedTuple):
    """A line of the program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


Places = tuple[Place, ...]
"""A place, and those that have called it: the innermost first."""

NOWHERE: Final[Places] = (Place("<unknown>", 0),)

_DEPTH: Final = 3
_INSTALLED: Final = tuple(
    f"{folder}{sep}"
    for folder in {
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)
# Threads: each use is one operation of a dict, which is atomic; two threads find the same.
_is_program: dict[str, bool] = {}  # by file


def places_of_program() -> Places:
    """Return the lines of the program that are being executed, of at most three functions."""
    found: list[Place] = []
    for frame in frames():
        if _is_of_program(frame):
            found.append(Place(frame.f_code.co_filename, frame.f_lineno))
            if len(found) == _DEPTH:
                break
    return tuple(found) or NOWHERE


def _is_of_program(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    known = _is_program.get(file)
    if known is None:
        known = not (file.startswith((*_INSTALLED, "<frozen")) or is_of_library(frame))
        if not file.startswith("<"):  # "<string>" is anybody's
            _is_program[file] = known
    return known
