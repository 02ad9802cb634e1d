"""Prints the step that is taking long, so that the terminal is never silent.

``python progress.py TEXT... -- COMMAND...`` prints the texts, runs the command, and prints its last
line every ten seconds; it prints all output only if the command fails. make runs it before it installs
anything, so this file needs only the standard library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

INTERVAL = 10.0  # seconds between two lines
_WIDTH = 100  # characters of a command's last line

_STANDARD_ERROR = 2
_terminal = _STANDARD_ERROR  # a file descriptor


def say(line: str) -> None:
    """Print a line on standard error, even while pytest captures output."""
    # In a test run, the previous line may be pytest's, with a dot for each test.
    start = "" if _terminal == _STANDARD_ERROR else "\n"
    os.write(_terminal, f"{start}{line}\n".encode(errors="replace"))


def keep_terminal() -> None:
    """Make :func:`say` print to the current standard error, even if someone redirects it later."""
    global _terminal  # noqa: PLW0603  # global to the process, like standard error
    _terminal = os.dup(_STANDARD_ERROR)


@contextmanager
def progress(state: Callable[[], str], interval: float = INTERVAL) -> Iterator[None]:
    """While the block runs, print ``state()`` repeatedly, with the seconds since its start."""
    began, ended = time.monotonic(), threading.Event()

    def tell() -> None:
        while not ended.wait(interval):
            say(f"  {time.monotonic() - began:3.0f} s: {state()}")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def run(texts: Sequence[str], command: Sequence[str], interval: float = INTERVAL) -> int:
    """Run a command as this module's docstring says; return its exit status."""
    for text in texts:
        say(text)
    with tempfile.TemporaryFile() as output:

        def said() -> str:
            return os.pread(output.fileno(), 2**30, 0).decode(errors="replace")

        with progress(lambda: _last_line(said()), interval):
            status = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
        if status:
            say(said())
    return status


def _last_line(text: str) -> str:
    lines = text.split("\n")[:-1]  # the last one may be unfinished
    return (lines or ["it has said nothing yet"])[-1].strip()[:_WIDTH]


if __name__ == "__main__":
    if "--" not in sys.argv[2:-1]:
        sys.exit(f"usage: {Path(sys.argv[0]).name} TEXT... -- COMMAND...")
    separator = sys.argv.index("--")
    sys.exit(run(sys.argv[1:separator], sys.argv[separator + 1 :]))
