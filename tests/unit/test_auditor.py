"""sa-doclock-audit under the names of sa_doclock: the same objects if it is installed, else how to install it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import doclock_audit
import sa_doclock.testing
from sa_doclock.testing import NAMES

AUDITOR = Path(doclock_audit.__file__).parent
INSTALL = (
    "needs the package sa-doclock-audit, which is not installed: pip install 'sa-doclock[audit]'"
)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide doclock_audit from imports."""
    monkeypatch.setitem(sys.modules, "doclock_audit", None)


def without_auditor(code: str, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a separate process that cannot import doclock_audit."""
    code = f"import sys; sys.modules['doclock_audit'] = None; {code}"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


def test_the_names_of_the_test_kit_are_the_auditors_own_objects() -> None:
    assert set(doclock_audit.__all__) == NAMES < set(sa_doclock.testing.__all__)
    for name in NAMES:
        assert getattr(sa_doclock.testing, name) is getattr(doclock_audit, name)


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_name_of_the_test_kit_says_how_to_install_the_auditor(name: str) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        getattr(sa_doclock.testing, name)
    assert str(caught.value) == f"sa_doclock.testing.{name} {INSTALL}"


def test_an_import_of_all_names_is_of_those_that_are_here(tmp_path: Path) -> None:
    done = without_auditor(
        "from sa_doclock.testing import *; print(two_at_once.__name__, 'audit' in dir())", tmp_path
    )
    assert (done.stdout, done.stderr) == ("two_at_once False\n", "")


def test_a_module_that_the_auditor_lacks_is_not_taken_for_the_auditor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "doclock_audit"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "doclock_audit.html", None)
    with pytest.raises(ModuleNotFoundError, match=r"doclock_audit\.html"):
        _ = sa_doclock.testing.audit


@pytest.mark.slow
def test_the_command_says_how_to_install_it(tmp_path: Path) -> None:
    run = "from sa_doclock.tools.cli import main; main()"
    for arguments in (["audit"], ["audit", "--json", "--", "-m", "pytest"], ["audit", "--help"]):
        done = without_auditor(run, tmp_path, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"sa-doclock: the command audit {INSTALL}\n"
    shown = without_auditor(run, tmp_path, "--help").stdout
    assert "audit" in shown
    assert "doctor" in shown


@pytest.mark.slow
def test_pytest_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "test_one.py").write_text("def test_one(): pass\ndef test_two(explore): pass\n")
    run = "import pytest; sys.exit(pytest.main(['-p', 'pytest_sa_doclock', *sys.argv[1:]]))"
    for option in ("--doclock-audit", "--doclock-audit-html=found.html"):
        done = without_auditor(run, tmp_path, option)
        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert f"ERROR: --doclock-audit {INSTALL}" in done.stderr
    without = without_auditor(run, tmp_path).stdout
    assert f"sa_doclock.testing.explore {INSTALL}" in without
    assert "1 passed, 1 error" in without


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each module of sa_doclock that a file imports from, with the imported name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module or ""
            if module.partition(".")[0] == "sa_doclock":
                yield from ((module, alias.name) for alias in node.names)


def test_the_auditor_uses_public_names_alone() -> None:
    found = {name for path in AUDITOR.rglob("*.py") for name in imports(path)}
    assert ("sa_doclock", "LockingSession") in found
    public = {module: import_module(module) for module, _ in found}
    assert {
        f"{module}.{name}"
        for module, name in found
        if name.startswith("_") or name not in getattr(public[module], "__all__", [name])
    } == set()
