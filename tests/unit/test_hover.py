"""An editor shows the full documentation of each method of a session, including the async sessions."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sa_doclock import AsyncLockingSession, LockingSession

# --------------------------------------------------------------------------------------------------
# A language server client that asks what an editor shows for a name in a program.

_URI = "file:///program.py"  # in no folder, so that the server reads no project settings


class LanguageServer:
    """Queries a running server about one program."""

    def __init__(self, process: subprocess.Popen[bytes], program: str) -> None:
        self._process = process
        self._calls = 0
        self._call("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        self._send({"method": "initialized", "params": {}})
        document = {"uri": _URI, "languageId": "python", "version": 1, "text": program}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})

    def hover(self, line: int, character: int) -> str:
        """Return the text that an editor shows at a position; both numbers are zero-based."""
        place = {"line": line, "character": character}
        found = self._call("textDocument/hover", {"textDocument": {"uri": _URI}, "position": place})
        return str(found["contents"]["value"]) if found else ""

    def _call(self, method: str, params: dict[str, Any]) -> Any:
        self._calls += 1
        self._send({"id": self._calls, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" not in message:
                assert message["id"] == self._calls
                return message["result"]
            assert "id" not in message, "the server asks for what this client does not have"

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        headers = dict(line.split(b": ") for line in iter(lambda: stream.readline().strip(), b""))
        message: dict[str, Any] = json.loads(stream.read(int(headers[b"Content-Length"])))
        return message


@contextmanager
def serving(program: str) -> Iterator[LanguageServer]:
    """Run basedpyright's server on this program."""
    command = shutil.which("basedpyright-langserver", path=sysconfig.get_path("scripts"))
    assert command is not None
    # The first "python" in PATH provides the packages that a program imports.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    with subprocess.Popen(
        [command, "--stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).root,
        env={**os.environ, "PATH": path},
    ) as process:
        try:
            yield LanguageServer(process, program)
        finally:
            process.kill()


# --------------------------------------------------------------------------------------------------
# An editor shows the full documentation of each session method, also the asynchronous ones.

pytest.importorskip("basedpyright")
METHODS = sorted(
    {
        name
        for one in LockingSession.__mro__
        if one.__module__.startswith("sa_doclock")
        for name in vars(one)
    }
    & {name for name in vars(AsyncLockingSession) if not name.startswith("_")}
)
PROGRAM = "\n".join(
    [
        "from sa_doclock import AsyncLockingSession",
        "def program(session: AsyncLockingSession) -> None:",
        *(f"    session.{name}" for name in METHODS),
    ]
)
_NO_LETTER = re.compile(r"&nbsp;|[^a-zA-Z]")


def letters(text: str) -> str:
    """Remove the editor's layout from a text."""
    return _NO_LETTER.sub("", re.sub(r":\w+:`~?(?:\w+\.)*(\w+)", r"\1", text))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_editor_shows_whole_docstrings() -> None:
    assert "get_entity" in METHODS
    missing = {}
    with serving(PROGRAM) as server:
        for line, name in enumerate(METHODS, 2):
            documented = inspect.getdoc(inspect.getattr_static(LockingSession, name)) or ""
            shown = letters(server.hover(line, len("    session.")))
            last = letters(documented.rstrip().rpartition("\n")[2])
            first = letters(documented.partition("\n")[0])
            if first not in shown or last not in shown:
                missing[name] = shown
            if "AbstractAsyncContextManager" in shown and "asyncwith" not in shown:
                missing[name] = "async with"
    assert missing == {}


@pytest.mark.parametrize("name", METHODS)
def test_help_says_async_with_of_a_block(name: str) -> None:
    method = inspect.getattr_static(AsyncLockingSession, name)
    says = (inspect.getdoc(method) or "").partition("\n")[0]
    is_block = name.startswith("locked") or name == "unguarded"
    assert ("by ``async with``." in says) is is_block
    assert ("awaited." in says) is inspect.iscoroutinefunction(method)
