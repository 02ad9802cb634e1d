"""The parser's interface for the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SETTINGS = {
    "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1",  # otherwise it looks for ICU
    "COMPlus_EnableDiagnostics": "0",  # no pipes for debuggers
}


@dataclass(frozen=True)
class Verdict:
    """The errors of a text: from the parser, or, if it finds none, from the rules."""

    syntax: list[str]
    rules: list[str]

    def __bool__(self) -> bool:
        """Return whether the text has no errors."""
        return not self.syntax and not self.rules


class Checker:
    """Sends texts to the process that holds the parser."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._known: dict[str, Verdict] = {}

    def check(self, texts: Sequence[str]) -> list[Verdict]:
        """Return a verdict for each text."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known |= zip(new, self._ask(new), strict=True)
        return [self._known[text] for text in texts]

    def _ask(self, texts: list[str]) -> list[Verdict]:
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        questions.write(json.dumps(texts) + "\n")
        questions.flush()
        if not (line := answers.readline()):
            msg = f"the parser has ended with status {self._process.wait()}; see its standard error"
            raise RuntimeError(msg)
        return [Verdict(**answer) for answer in json.loads(line)]


@contextmanager
def checking(folder: Path) -> Iterator[Checker]:
    """Run the parser unpacked in this folder."""
    command = [sys.executable, "-m", "lab.tsql.scriptdom", str(folder.resolve())]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **_SETTINGS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        checker = Checker(process)
        checker.check(["SELECT 1"])  # the parser works
        yield checker
        process.kill()  # it has nothing to tidy up, and would end slowly
