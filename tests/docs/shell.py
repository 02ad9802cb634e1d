"""Checks the commands in shell blocks: their programs, files and options exist."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.docs.pages import ROOT

Words = list[str]
WIDE = {"COLUMNS": "200", "NO_COLOR": "1"}


class UnknownCommand(AssertionError):
    """A page tells the reader to type a command that does not exist."""


def commands_of(text: str) -> Iterator[Words]:
    """Yield the commands of a shell block, as words, without redirections."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"\w+=", words[0]):
            del words[0]
        if words:
            yield words[: words.index(">")] if ">" in words else words


def check(words: Words) -> None:
    """Check one command.

    :raises UnknownCommand: a reader could not run it.
    """
    known = COMMANDS.get(words[0])
    if known is None:
        raise UnknownCommand(f"{words[0]} is none of {', '.join(COMMANDS)}")
    known(words[1:])


def _make(arguments: Words) -> None:
    targets = re.findall(r"^([\w-]+):", _read("Makefile"), re.MULTILINE)
    for target in arguments:
        _require("=" in target or target in targets, f"the Makefile has no target {target}")


def _pip(arguments: Words) -> None:
    _require(arguments[:1] == ["install"], "pip install is all that we know of")
    section = _read("pyproject.toml").partition("[project.optional-dependencies]\n")[2]
    extras = re.findall(r"^([\w-]+) =", section.partition("\n[")[0], re.MULTILINE)
    for wanted in arguments[1:]:
        if (ROOT / wanted / "pyproject.toml").is_file():  # a folder of the checkout
            continue
        named = re.fullmatch(r"(?:sa-doclock|\.)\[([\w,-]+)\]", wanted)
        _require(named is not None, f"{wanted} is not sa-doclock[...]")
        assert named is not None
        for extra in named[1].split(","):
            _require(extra in extras, f"there is no extra {extra}")


def _pytest(arguments: Words) -> None:
    shown = _run("-m", "pytest", "-p", "pytest_sa_doclock", "--help")
    for option in arguments:
        name = option.partition("=")[0]
        _require(name in shown, f"pytest has no option {name}")


def _sa_doclock(arguments: Words) -> None:
    command = arguments[:1]
    arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
    shown = _help_of(*command)
    for option in arguments[1:]:
        if option.startswith("--"):
            there = re.search(rf"(?<!\S){re.escape(option)}(?![\w-])", shown)
            _require(there is not None, f"sa-doclock {command} has no option {option}")


def _alembic(arguments: Words) -> None:
    # To an SQL script, so that no server is needed.
    offline = arguments if "--sql" in arguments else [*arguments, "--sql"]
    shown = _run("-m", "alembic", *offline)
    _require("SNAPSHOT_ISOLATION" in shown, "the migration has nothing to do")


def _python(arguments: Words) -> None:
    _require(arguments[:1] == ["-m"], "python -m MODULE is all that we know of")
    _require(importlib.util.find_spec(arguments[1]) is not None, f"no module {arguments[1]}")


def _docker(arguments: Words) -> None:
    _require(arguments[:1] == ["compose"], "docker compose is all that we know of")
    services = re.findall(r"^  ([\w-]+):(?: &\w+)?$", _read("docker-compose.yml"), re.MULTILINE)
    for word in arguments[2:]:
        _require(word.startswith("-") or word in services, f"there is no service {word}")


def _somebody_elses(_arguments: Words) -> None:
    """Accept it unchecked: it belongs neither to us nor to Python."""


COMMANDS: Mapping[str, Callable[[Words], None]] = {
    "make": _make,
    "pip": _pip,
    "pytest": _pytest,
    "sa-doclock": _sa_doclock,
    "alembic": _alembic,
    "python": _python,
    "docker": _docker,
    "export": _somebody_elses,
    "git": _somebody_elses,
    "sqlcmd": _somebody_elses,
}


def _require(condition: object, otherwise: str) -> None:
    if not condition:
        raise UnknownCommand(otherwise)


def _read(name: str) -> str:
    return Path(ROOT, name).read_text(encoding="utf-8")


@cache  # the pages repeat some commands many times
def _help_of(*command: str) -> str:
    from typer.testing import CliRunner  # noqa: PLC0415  # the caller skips the test where there is none

    from sa_doclock.tools.cli.app import app  # noqa: PLC0415

    result = CliRunner(env=WIDE).invoke(app, [*command, "--help"])
    _require(result.exit_code == 0, f"sa-doclock {shlex.join(command)} --help: {result.output}")
    return result.output


@cache
def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **WIDE},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    _require(done.returncode == 0, f"{shlex.join(arguments)}: {done.stderr}")
    return done.stdout
