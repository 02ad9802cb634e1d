"""Keeps one server process: ends it and removes its folder as soon as its user is gone.

Run it as ``python keeper.py [--user NAME] --signal N FOLDER COMMAND...``, with the read end of a pipe
as standard input. The server's user holds the other end open. When that process closes it or dies,
even by ``kill -9``, the keeper reads the end of the file and tidies up. If the keeper reads a byte
instead, it simulates a power failure: it kills the server with all its processes, writes ``killed`` to
standard output, and runs the command again in the same folder. No signal handler in the tests could
do as much. This file imports no module of this project.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
#: PostgreSQL may refuse to start for this long, until all its earlier processes are gone.
_RESTART_SECONDS = 20


def main() -> None:
    """Run the command until it or standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--user")
    parser.add_argument("--signal", type=int, required=True)
    parser.add_argument("folder", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _exit)
    try:
        _keep(arguments.command, arguments.folder, arguments.user, arguments.signal)
    finally:
        shutil.rmtree(arguments.folder, ignore_errors=True)


def _exit(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def _keep(command: list[str], folder: Path, user: str | None, stop_signal: int) -> None:
    server = _start(command, folder, user)
    restarted = float("-inf")
    try:
        while (reported := _input()) != b"":
            if reported is not None:
                _kill_all(server)
                os.write(1, b"killed\n")
                restarted = time.monotonic()
            if server.poll() is not None:
                if time.monotonic() - restarted > _RESTART_SECONDS:
                    sys.exit(_last_words(folder / "log"))
                server = _start(command, folder, user)
    finally:
        _stop(server, stop_signal)


def _start(command: list[str], folder: Path, user: str | None) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            user=user,
            group=None if user is None else _group_of(user),
            extra_groups=None if user is None else [],
            preexec_fn=_die_with_keeper,  # noqa: PLW1509  # the keeper has one thread
        )


def _kill_all(server: subprocess.Popen[bytes]) -> None:
    """Kill the server and its children; without /proc, the children end when they miss their parent."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            if int(stat.read_text().rpartition(")")[2].split()[1]) == server.pid:
                children.append(int(stat.parent.name))
    for process in (server.pid, *children):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    server.wait()


def _group_of(user: str) -> int:
    import pwd  # noqa: PLC0415  # not on Windows, where mypy and ruff still read this file

    return pwd.getpwnam(user).pw_gid


def _die_with_keeper() -> None:
    """Make Linux end the server if the keeper itself is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _input() -> bytes | None:
    """Return the bytes on standard input: none at its end, None if nothing has arrived yet."""
    readable, _, _ = select.select([0], [], [], 0.2)
    return os.read(0, 1) if readable else None


def _last_words(log: Path) -> str:
    """Return the last output of a server that ended by itself: its errors, else its last lines."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines if "ERROR" in line or "FATAL" in line]
    return "\n".join((errors or lines)[-3:]) or "it ended and said nothing"


def _stop(server: subprocess.Popen[bytes], stop_signal: int) -> None:
    if server.poll() is not None:
        return
    server.send_signal(stop_signal)
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
