"""Code in a separate process that has imported SQLAlchemy, but none of our code.

All of them fork from one process: starting Python and importing SQLAlchemy takes longer than such a test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_SQLALCHEMY = "import sqlalchemy.ext.asyncio, sqlalchemy.orm"
_FORKS = f"""
import json, os, sys, tempfile, traceback
{_SQLALCHEMY}


def run(code, out, err):
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    status = 0
    try:
        exec(code, {{"__name__": "__main__"}})
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        if status and not isinstance(exc.code, int):
            print(exc.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if not (child := os.fork()):
            run(json.loads(line), out, err)
        _, status = os.waitpid(child, 0)
        texts = [os.waitstatus_to_exitcode(status)]
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    print(json.dumps(texts), flush=True)
"""


class Ended(NamedTuple):
    """The exit status of a process, and its output."""

    returncode: int
    stdout: str
    stderr: str


class FreshProcesses:
    """The process that the others fork from; Windows has none."""

    def __init__(self, process: subprocess.Popen[str] | None) -> None:
        self._process = process

    def run(self, code: str) -> Ended:
        """Run the code to its end in a separate process."""
        if self._process is None:
            return _started(f"{_SQLALCHEMY}\n{code}")
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{json.dumps(code)}\n")
        self._process.stdin.flush()
        return Ended(*json.loads(self._process.stdout.readline()))


@contextmanager
def fresh_processes() -> Iterator[FreshProcesses]:
    """Start the process that the others fork from, and end it."""
    if not hasattr(os, "fork"):
        yield FreshProcesses(None)
        return
    command, pipe = [sys.executable, "-c", _FORKS], subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) as process:
        yield FreshProcesses(process)


def _started(code: str) -> Ended:
    """Run the code in a new Python process."""
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return Ended(ran.returncode, ran.stdout, ran.stderr)
