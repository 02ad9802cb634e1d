"""``python -m lab.programs.replay NAME FOLDER``: replays some of a program's errors with explore(), in its environment.

It prints the timeline of the first wrong order of each error, and a line of JSON.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path


def file_of(name: str) -> Path:
    """Return the file that replays this program's errors, if it exists."""
    return Path(__file__).with_name(f"replay_{name.replace('-', '_')}.py")


def main(name: str, folder: str) -> None:
    """Run all orders of each error."""
    counts = []
    for explored in import_module(f"lab.programs.{file_of(name).stem}").replays(folder):
        assert explored.complete, explored.incomplete_because
        print(explored.failures[0] if explored.failures else "no order is wrong")
        counts.append([len(explored.failures), explored.runs])
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
