"""The command line ``sa-doclock``; it needs the extra ``sa-doclock[cli]``."""

from __future__ import annotations

import io
import signal
import sys

NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line; end the process with its exit status.

    0: all is well; 1: an inconsistency or an error; 2: the request cannot be done.
    """
    try:
        from .app import app  # noqa: PLC0415  # a missing extra is reported below
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDED:
            raise
        sys.stderr.write(
            f"sa-doclock: the command line needs {missing}, which is not installed: "
            "pip install 'sa-doclock[cli]'\n"
        )
        sys.exit(2)
    # Names and statements may contain characters that the terminal or file cannot encode.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # SIGTERM ends a run as Ctrl-C does, so that it drops its tables.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()
