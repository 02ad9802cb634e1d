"""The process that hosts the .NET runtime: ``python -m lab.tsql.scriptdom FOLDER``.

A line of standard input is a JSON list of texts; the answer is a line with a list of the errors in each
text.  The process is separate because the runtime starts threads and signal handlers, which would
disturb the other tests: they fork, and count threads.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from lab.tsql.rules import broken

# The files' places in the folder.
ASSEMBLY = "mssqlcli/mssqltoolsservice/bin/Microsoft.SqlServer.TransactSql.ScriptDom.dll"
DOTNET = "dotnetcore2/bin"
RUNTIME_CONFIG = "runtimeconfig.json"


class Parser:
    """The parsers of SQL Server 2016 and 2019, and a visitor for their syntax trees."""

    def __init__(self, folder: Path) -> None:
        pythonnet, clr_loader = map(importlib.import_module, ("pythonnet", "clr_loader"))
        config, dotnet = str(folder / RUNTIME_CONFIG), str(folder / DOTNET)
        pythonnet.set_runtime(clr_loader.get_coreclr(runtime_config=config, dotnet_root=dotnet))
        importlib.import_module("clr").AddReference(str(folder / ASSEMBLY))
        script_dom = importlib.import_module("Microsoft.SqlServer.TransactSql.ScriptDom")
        self._reader = importlib.import_module("System.IO").StringReader
        newest, oldest = script_dom.TSql150Parser, script_dom.TSql130Parser
        self._parsers = [newest(True), oldest(True)]  # with QUOTED_IDENTIFIER ON
        self._visitor = _visitor(script_dom.TSqlConcreteFragmentVisitor)

    def check(self, text: str) -> dict[str, list[str]]:
        """Return the parser's errors; if it finds none, the errors that the server would find."""
        nodes, errors = self._parse(text)
        return {"syntax": errors, "rules": [] if errors else list(broken(nodes, self._parse))}

    def _parse(self, text: str) -> tuple[list[Any], list[str]]:
        for parser in self._parsers:
            tree, errors = parser.Parse(self._reader(text), None)
            if errors.Count:
                return [], [f"{one.Message} ({one.Number}, line {one.Line})" for one in errors]
        visitor = self._visitor()
        tree.Accept(visitor)
        return visitor.seen, []


def _visitor(base: Any) -> Any:
    class Visitor(base):  # type: ignore[misc]  # a .NET class
        """Records every node of the tree, parents before children."""

        __namespace__ = "Doclock"  # makes it a .NET class too

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def Visit(self, node: Any) -> None:  # noqa: N802  # overrides a method for each class of nodes
            self.seen.append(node)

    return Visitor


def main() -> None:
    """Answer until standard input ends."""
    parser = Parser(Path(sys.argv[1]).resolve())
    for line in sys.stdin:
        print(json.dumps([parser.check(text) for text in json.loads(line)]), flush=True)


if __name__ == "__main__":
    main()
