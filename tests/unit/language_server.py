"""A client of a language server, which asks it what an editor shows for a name in a program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_URI = "file:///program.py"  # in no folder: the server reads no project's settings


class LanguageServer:
    """Asks a running server about one program."""

    def __init__(self, process: subprocess.Popen[bytes], program: str) -> None:
        self._process = process
        self._calls = 0
        self._call("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        self._send({"method": "initialized", "params": {}})
        document = {"uri": _URI, "languageId": "python", "version": 1, "text": program}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})

    def hover(self, line: int, character: int) -> str:
        """Return the text that an editor shows at a place; both numbers begin at 0."""
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
    # The packages that a program imports are those of the first "python" in PATH.
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
