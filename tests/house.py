"""``make house``: how large the house is, in figures that must not get worse.

``tests/house.json`` has the figures as committed.  A figure that is worse than its committed value is
an error: make the change smaller, or write the new value with ``--write`` and say why in the commit.
A figure that is better is written by ``--write`` too, so that it stays.

Everything is read from the source by :mod:`ast`; nothing is imported, and no database is needed.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sa_doclock"
AUDITOR = ROOT / "audit" / "doclock_audit"
COMMITTED = Path(__file__).with_suffix(".json")

#: A private function with at most this many lines is short.
SHORT = 6

FEATURES = "sa_doclock.features"
INTERFACES = {"sa_doclock.dialects.base"}

GOALS = {
    "lines of the wheel": 34_000,
    "files of the wheel": 190,
    "lines of the auditor": 5_000,
    "lines of the core": 9_000,
    "files of the core": 50,
    "mutable fields of a transaction": 35,
    "classes with such fields": 4,
    "such fields assigned from outside": 12,
    "hooks": 16,
    "hooks with one implementer": 4,
    "names in sa_doclock.__all__": 44,
    "members of the dialect interface": 80,
    "imports past another package's __init__": 0,
    "features that import a sibling, pairs": 2,
    "short private functions called once": 60,
    "variables called one": 0,
    "vague words in the package": 250,
    "vague words in docs": 120,
    "files in tests": 500,
    "helper files behind a test file, median": 6,
    "helper lines for 100 lines of tests": 20,
}
"""The largest value that each figure is to have in the end."""


class Module:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()
        self.lines = self.text.count("\n")
        self.tree = ast.parse(self.text)
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.is_package = parts[-1] == "__init__"
        self.package = ".".join(parts[:-1])
        self.name = self.package if self.is_package else ".".join(parts)

    def imports(self) -> Iterator[tuple[str, str | None]]:
        """Yield (module, name) of each import; the name is None for ``import module``."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self.package.split(".")
                above = base[: len(base) - node.level + 1] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                yield from ((module, alias.name) for alias in node.names)


def modules(*folders: Path) -> list[Module]:
    return [Module(path) for folder in folders for path in sorted(folder.rglob("*.py"))]


def figures() -> dict[str, float]:
    package = modules(PACKAGE)
    wheel = [*package, *modules(ROOT / "pytest_sa_doclock")]
    core = [module for module in package if module.name.startswith("sa_doclock.core")]
    tests = modules(ROOT / "tests", ROOT / "audit" / "tests")
    return {
        "lines of the wheel": sum(module.lines for module in wheel),
        "files of the wheel": len(wheel),
        "lines of the auditor": sum(module.lines for module in modules(AUDITOR)),
        "lines of the core": sum(module.lines for module in core),
        "files of the core": len(core),
        **fields_of_a_transaction(package),
        **hooks(package),
        "names in sa_doclock.__all__": len(exported(PACKAGE / "__init__.py")),
        "members of the dialect interface": members_of_the_dialect(package),
        "imports past another package's __init__": len(list(imports_past(package))),
        "features that import a sibling, pairs": len(siblings(package)),
        "short private functions called once": len(called_once(package)),
        "variables called one": sum(map(variables_called_one, package)),
        "vague words in the package": sum(vague_words(module.text) for module in package),
        "vague words in docs": sum(
            vague_words(path.read_text(encoding="utf-8")) for path in (ROOT / "docs").rglob("*.md")
        ),
        "files in tests": len(tests),
        **helpers(tests),
    }


def fields_of_a_transaction(package: list[Module]) -> dict[str, float]:
    """Count the attributes that code assigns after ``__init__``, for the classes of a transaction.

    An assignment through another name than ``self`` comes from outside the class.  Only the attribute's
    name identifies it, so a field counts once even if several classes have a field of this name.
    """
    stores: Counter[str] = Counter()
    for module in package:
        stores.update(
            node.attr
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        )
    fields: set[tuple[str, str]] = set()
    outside: set[str] = set()
    for cls in classes(package, "sa_doclock.core.transaction", "sa_doclock.core.ledger"):
        own: set[str] = set()
        for method in cls.body:
            if isinstance(method, ast.FunctionDef):
                assigned = set(assigned_to_self(method))
                own |= assigned
                if method.name != "__init__":
                    fields |= {(cls.name, name) for name in assigned}
        from_outside = own & stores.keys()
        fields |= {(cls.name, name) for name in from_outside}
        outside |= from_outside
    return {
        "mutable fields of a transaction": len(fields),
        "classes with such fields": len({cls for cls, _ in fields}),
        "such fields assigned from outside": len(outside),
    }


def assigned_to_self(method: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(method):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr


def classes(package: list[Module], *within: str) -> Iterator[ast.ClassDef]:
    for module in package:
        if module.name.startswith(within):
            yield from (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def hooks(package: list[Module]) -> dict[str, float]:
    """Count the public methods of SessionPart, and the most that a single class overrides."""
    found = {cls.name: cls for cls in classes(package, "sa_doclock")}
    own = methods(found["SessionPart"])
    implementers = Counter(
        name
        for cls in found.values()
        if cls.name != "SessionPart" and inherits(cls, "SessionPart", found)
        for name in methods(cls) & own
    )
    return {
        "hooks": len(own),
        "hooks with one implementer": sum(implementers[name] <= 1 for name in own),
    }


def methods(cls: ast.ClassDef) -> set[str]:
    return {
        node.name
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def inherits(cls: ast.ClassDef, base: str, found: dict[str, ast.ClassDef]) -> bool:
    names = [node.id for node in cls.bases if isinstance(node, ast.Name)]
    return base in names or any(
        inherits(found[name], base, found) for name in names if name in found and name != cls.name
    )


def exported(path: Path) -> list[str]:
    for node in ast.parse(path.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "__all__":
            return list(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    raise LookupError(path)


def members_of_the_dialect(package: list[Module]) -> int:
    """Count the public members of LockStrategy, and of the aspects in its annotations."""
    found = {cls.name: cls for cls in classes(package, "sa_doclock.dialects")}
    seen: set[str] = set()
    waiting = ["LockStrategy"]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in found:
            continue
        seen.add(name)
        waiting += [base.id for base in found[name].bases if isinstance(base, ast.Name)]
        if name == "LockStrategy":
            waiting += [
                part.id
                for node in found[name].body
                if isinstance(node, ast.AnnAssign)
                for part in ast.walk(node.annotation)
                if isinstance(part, ast.Name)
            ]
    return sum(len(public_members(found[name])) for name in seen)


def public_members(cls: ast.ClassDef) -> set[str]:
    names = methods(cls) | {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return {name for name in names if not name.startswith("_")}


def imports_past(package: list[Module]) -> Iterator[tuple[str, str]]:
    """Yield the imports of a module from another package whose ``__init__`` exports names.

    A feature of one file is its own interface, and so is ``dialects/base.py``.
    """
    by_name = {module.name: module for module in package}
    for module in package:
        for target, _ in set(module.imports()):
            imported = by_name.get(target)
            if imported is None or imported.is_package or imported.name in INTERFACES:
                continue
            owner = by_name[imported.package]
            inside = f"{module.package}.".startswith(f"{owner.name}.")
            if (
                not inside
                and owner.name != FEATURES
                and any(True for _ in owner.imports() if _[0].startswith(owner.name))
            ):
                yield module.name, target


def siblings(package: list[Module]) -> set[tuple[str, str]]:
    """Return the pairs of features in which one imports the other."""
    pairs = set()
    for module in package:
        feature = feature_of(module.name)
        if feature in (None, "install"):  # it combines the features
            continue
        for target, name in module.imports():
            other = feature_of(target) or feature_of(f"{target}.{name}")
            if other not in (None, feature):
                pairs.add((feature, other))
    return pairs


def feature_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[2] if parts[:2] == ["sa_doclock", "features"] and len(parts) > 2 else None


def vague_words(text: str) -> int:
    """Count the words that replace the name of a thing."""
    return len(re.findall(r"\b(?:what|those that|is told)\b", text, re.IGNORECASE))


def called_once(package: list[Module]) -> dict[str, str]:
    """Return the private functions of at most SHORT lines with a single caller, by module.

    Listeners and other functions that are passed as arguments are exempt: they cannot be inlined.
    """
    names: Counter[str] = Counter()
    called: set[str] = set()
    short: dict[str, list[str]] = {}
    for module in package:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name | ast.Attribute):
                names[name_of(node)] += 1
            elif isinstance(node, ast.Call):
                called.add(name_of(node.func))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                private = node.name.startswith("_") and not node.name.startswith("__")
                if private and not node.decorator_list and body_lines(node) <= SHORT:
                    short.setdefault(node.name, []).append(f"{module.name}:{node.lineno}")
    return {
        name: places[0]
        for name, places in short.items()
        if len(places) == 1 and names[name] == 1 and name in called
    }


def name_of(node: ast.expr) -> str:
    """Return the name of a variable or attribute; an empty string for any other expression."""
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def variables_called_one(module: Module) -> int:
    """Count the variables and parameters named ``one``; each should have a noun."""
    return sum(
        (isinstance(node, ast.Name) and node.id == "one" and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.arg) and node.arg == "one")
        for node in ast.walk(module.tree)
    )


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function, with its ``def`` line and without its docstring."""
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    lines = (function.end_lineno or 0) - function.lineno + 1
    if docstring is not None:
        lines -= (docstring.end_lineno or 0) - docstring.lineno + 1
    return lines


def helpers(tests: list[Module]) -> dict[str, float]:
    """Count the helper modules that a test file imports, directly or indirectly, and their lines."""
    by_name = {module.name: module for module in tests}
    is_test = {name: name.rpartition(".")[2].startswith("test_") for name in by_name}
    behind: dict[str, set[str]] = {
        module.name: {
            name
            for target, part in module.imports()
            for name in (target, f"{target}.{part}")
            if name in by_name and by_name[name].lines
        }
        for module in tests
    }
    counts = []
    for name in (name for name, yes in is_test.items() if yes):
        seen: set[str] = set()
        waiting = list(behind[name])
        while waiting:
            helper = waiting.pop()
            if helper not in seen:
                seen.add(helper)
                waiting += behind[helper]
        counts.append(len(seen))
    lines = {
        yes: sum(module.lines for module in tests if is_test[module.name] is yes)
        for yes in (True, False)
    }
    return {
        "helper files behind a test file, median": median(counts),
        "helper lines for 100 lines of tests": round(100 * lines[False] / lines[True]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="make house", description=__doc__)
    parser.add_argument("--write", action="store_true", help="commit today's figures")
    parser.add_argument("--list", action="store_true", help="list the short functions called once")
    options = parser.parse_args()
    if options.list:
        for name, place in called_once(modules(PACKAGE)).items():
            print(f"{place} {name}")
        return
    today = figures()
    committed = json.loads(COMMITTED.read_text()) if COMMITTED.exists() else today
    print(f"{'':45}{'today':>8}{'committed':>11}{'goal':>8}")
    for name, figure in today.items():
        print(f"{name:45}{figure:8,g}{committed.get(name, figure):11,g}{GOALS[name]:8,g}")
    worse = [name for name, figure in today.items() if figure > committed.get(name, figure)]
    if options.write:
        COMMITTED.write_text(json.dumps(today, indent=2) + "\n")
    elif worse:
        sys.exit(
            f"worse than committed in {COMMITTED.name}: {', '.join(worse)}. Make the change smaller, or"
            " run `python -m tests.house --write` and say why in the commit."
        )


if __name__ == "__main__":
    main()
