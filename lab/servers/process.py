"""A separate server process: a folder, a free port, and a keeper that tidies up afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.servers.model import EndedError, UnavailableError

_KEEPER = Path(__file__).with_name("keeper.py")


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no process listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def is_root() -> bool:
    """Return whether this process runs as root, which servers treat specially."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def installed(program: str) -> str | None:
    """Find a server program; distributions install them outside a user's PATH."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    """Make a folder for one server; remove it here only if the server fails to start."""
    folder = Path(tempfile.mkdtemp(prefix="sa-doclock-"))
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def run(
    command: Sequence[str], *, user: str | None = None, text: str = "", seconds: float = 300
) -> str:
    """Run a command that prepares a server, and return its output.

    :param text: standard input for the command.
    :param seconds: time limit, after which the command is killed.
    :raises UnavailableError: the command failed; includes its last line of output.
    """
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            user=user,
            timeout=seconds,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise UnavailableError(str(exc)) from exc
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        said = "; ".join([line for line in lines if "[ERROR]" in line] or lines[-1:])
        program = Path(command[0]).name
        msg = f"{program} ended with status {done.returncode}: {said}"
        raise EndedError(msg)
    return done.stdout


class ServerProcess:
    """A server that ends with this process."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        stop_signal: signal.Signals,
        user: str | None = None,
    ) -> None:
        """Start ``command`` in ``folder``, which belongs to the server from now on.

        :param stop_signal: the signal that stops this server at once.
        :param user: the account to run it as; only root can choose another account.
        """
        as_user = [] if user is None else ["--user", user]
        self._keeper = subprocess.Popen(
            [
                *(sys.executable, "-I", str(_KEEPER), *as_user),
                *("--signal", str(int(stop_signal)), str(folder), *command),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C reaches all processes of the terminal; the servers must outlive the tests.
            start_new_session=True,
        )

    def check_alive(self) -> None:
        """If the server ended by itself, raise UnavailableError with its last output."""
        if self._keeper.poll() is None:
            return
        _, said = self._keeper.communicate()
        raise EndedError(said.strip())

    def crash(self) -> None:
        """Kill the server with all its processes; it starts again from its disk."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write("!")
        self._keeper.stdin.flush()
        self._keeper.stdout.readline()  # the server is dead

    def stop(self) -> None:
        """End the server, and wait until its folder is gone."""
        self._keeper.communicate(timeout=30)  # closes its standard input
