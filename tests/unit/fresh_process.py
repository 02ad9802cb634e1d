"""Code in a process of its own that has imported SQLAlchemy, and nothing of ours.

Each is forked from one process: to start Python and to import SQLAlchemy takes longer than such a test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_FORKS = """
import json, os, sys, tempfile, traceback
import sqlalchemy.ext.asyncio, sqlalchemy.orm


def run(code, out, err):
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    try:
        exec(code, {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if not (child := os.fork()):
            run(json.loads(line), out, err)
        os.waitpid(child, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    print(json.dumps(texts), flush=True)
"""


class Printed(NamedTuple):
    """The texts that a process has written to its standard output and standard error."""

    stdout: str
    stderr: str


class FreshProcesses:
    """The process that the others are forked from."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, code: str) -> Printed:
        """Run the code in a process of its own, and return what it has printed."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{json.dumps(code)}\n")
        self._process.stdin.flush()
        return Printed(*json.loads(self._process.stdout.readline()))


@contextmanager
def fresh_processes() -> Iterator[FreshProcesses]:
    """Start the process that the others are forked from, and end it."""
    command, pipe = [sys.executable, "-c", _FORKS], subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) as process:
        yield FreshProcesses(process)
