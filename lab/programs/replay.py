"""``python -m lab.programs.replay NAME FOLDER``, in the environment of a program: some of its errors by explore().

It prints the timeline of the first wrong order of each, and a line of JSON.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path


def file_of(name: str) -> Path:
    """Return the file that replays errors of this program, where there is one."""
    return Path(__file__).with_name(f"replay_{name.replace('-', '_')}.py")


def main(name: str, folder: str) -> None:
    """Run all orders of each."""
    counts = []
    for explored in import_module(f"lab.programs.{file_of(name).stem}").replays(folder):
        assert explored.complete, explored.incomplete_because
        print(explored.failures[0] if explored.failures else "no order is wrong")
        counts.append([len(explored.failures), explored.runs])
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
