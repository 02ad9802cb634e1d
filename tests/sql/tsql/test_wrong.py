"""The checks refuse bad T-SQL for the right reason; otherwise the other tests prove nothing."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from pathlib import Path

import pytest

from lab.servers.model import UnavailableError
from lab.tsql import wheels
from lab.tsql.checker import Checker
from lab.tsql.rules import RULES
from lab.tsql.wheels import unpacked
from tests.support.rows import rows

#: Texts that the parser itself refuses, and a part of its message.
SYNTAX = {
    "SELECT a FROM t WITH (UPDLOK)": "UPDLOK is not a recognized table",
    "SELECT a FROM t WITH (UPDLOCK, ROWLOCK, READPST)": "READPST is not a recognized table",
    "SELECT a FROM t WITH (UPDLOCK, ROWLOCK, NO WAIT)": "NO is not a recognized table",
    "SELECT a FROM t WITH (UPDLOCK, ROWLOCK": "Incorrect syntax near ROWLOCK",
    "SELECT a FROM t WITH (UPDLOCK) AS o": "Incorrect syntax near AS",
    "SELECT a FROM t WITH (UPDLOCK) WHERE (a = @P1": "end of file",
    "SELECT a FROM t WHERE a = ?": "Incorrect syntax near ?",
    "SELECT a FROM t LIMIT 1": "Incorrect syntax near LIMIT",
    "SELECT a FROM t OFFSET 1 ROWS FETCH FIRST 1 ROWS ONLY": "Incorrect syntax near OFFSET",
    "SELECT TOP @P1 a FROM t": "Incorrect syntax near @P1",
    "SELECT a FROM t FOR SHARE": "Incorrect syntax near SHARE",
    "SELECT a FROM t FOR UPDATE SKIP LOCKED": "Incorrect syntax near SKIP",
    "SELECT a FROM t LOCK IN SHARE MODE": "Incorrect syntax near LOCK",
    "SET TRANSACTION ISOLATION LEVEL SNAPSHOTS": "encountered SNAPSHOTS instead",
    "SET LOCK_TIMEOUT": "Incorrect syntax near LOCK_TIMEOUT",
    "SAVE TRANSACTION": "end of file",
    "RELEASE SAVEPOINT a": "Incorrect syntax near a",
    "EXEC @key = sp_getapplock @Resource = @P1 @LockMode = 'Shared'": "near @LockMode",
    "EXEC sp_executesql N'SELECT a FROM t WHERE b = 'c''": "Incorrect syntax near c",
    "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION YES": "near ALLOW_SNAPSHOT_ISOLATION",
    # since 2017, but we support 2016
    "SELECT TRIM('x' FROM a) FROM t": "Incorrect syntax near FROM",
    "IF 1 = 1 THROW 50000 'no', 1": "Incorrect syntax near 'no'",
}
#: Texts that the parser accepts and the server refuses: some for each rule.
REFUSED = {
    "SELECT a FROM t FOR UPDATE": "1003",
    "SELECT a FROM t WHERE a = @P1 FOR UPDATE OF t": "1003",
    "SELECT a FROM t FOR READ ONLY": "1003",
    "SELECT a FROM t WITH (NOLOCK, UPDLOCK)": "1047",
    "SELECT a FROM t AS o WITH (UPDLOCK, READUNCOMMITTED)": "1047",
    "SELECT a FROM t WITH (NOLOCK, ROWLOCK)": "1047",
    "SELECT a FROM t WITH (ROWLOCK, TABLOCK)": "1047",
    "SELECT a FROM t WITH (SERIALIZABLE, READCOMMITTED)": "1047",
    "SELECT a FROM t WITH (READCOMMITTEDLOCK, REPEATABLEREAD)": "1047",
    "SELECT a FROM t WITH (NOLOCK, READCOMMITTEDLOCK)": "1047",
    "SELECT a FROM t WITH (UPDLOCK, XLOCK)": "1047",
    "SELECT a FROM t WITH (NOLOCK, TABLOCK)": "1047",
    "SELECT a FROM t WHERE EXISTS (SELECT b FROM u WITH (NOLOCK, XLOCK))": "1047",
    "UPDATE t WITH (NOLOCK) SET a = 1": "1065",
    "DELETE FROM t WITH (READUNCOMMITTED) WHERE a = 1": "1065",
    "INSERT INTO t WITH (NOLOCK) (a) VALUES (1)": "1065",
    "MERGE t WITH (NOLOCK) AS o USING u ON o.a = u.a WHEN MATCHED THEN DELETE;": "1065",
    "SET LOCK_TIMEOUT '300'": "SET",
    "SET LOCK_TIMEOUT 0.3": "SET",
    "SET LOCK_TIMEOUT -2": "SET",
    "SET LOCK_TIMEOUT @P1": "SET",
    "SET LOCK_TIMEOUT never; SELECT a FROM t": "SET",
    "SET DEADLOCK_PRIORITY 'LOW'": "SET",
    "SET DEADLOCK_PRIORITY LOWEST": "SET",
    "SET DEADLOCK_PRIORITY 11": "SET",
    "SET DEADLOCK_PRIORITY @P1": "SET",
    "DECLARE @key int; SELECT @kee": "137",
    "EXEC @key = sp_getapplock @Resource = @P1": "137",
    "SELECT @@SPIT": "137",
    "EXEC sp_executesql 'SELECT a FROM t'": "214",
    "EXEC sp_executesql @P1": "214",
    "SAVEPOINT a": "2812",
    "BEGINN": "2812",
    "EXEC sp_getaplock @Resource = @P1": "2812",
    "EXEC @P1": "2812",
}
#: Faults inside a text to be executed.
INNER = {
    "SELECT a FROM t WITH (UPDLOK)": "within sp_executesql: UPDLOK is not a recognized table",
    "SET LOCK_TIMEOUT ''300''; SELECT a FROM t": "within sp_executesql: SET",
    "SELECT a FROM t FOR UPDATE": "within sp_executesql: 1003",
    "SELECT a FROM t WHERE b = ''it''s''": "within sp_executesql: Expected but did not find a clos",
    "SELECT a FROM t WHERE a = @key": "within sp_executesql: 137",
    "EXEC sp_executesql N''SELECT a FROM t LIMIT 1''": (
        "within sp_executesql: within sp_executesql: Incorrect syntax near LIMIT"
    ),
}
#: Valid twins of all these, as close as possible.
GOOD = (
    "SELECT a FROM t WITH (UPDLOCK, ROWLOCK, READPAST)",
    "SELECT a FROM t WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)",
    "SELECT a FROM t WITH (UPDLOCK, ROWLOCK, NOWAIT) WHERE (a = @P1)",
    "SELECT TOP 10 a FROM t AS o WITH (NOLOCK)",
    "SELECT a FROM t ORDER BY a OFFSET @P1 ROWS FETCH FIRST @P2 ROWS ONLY",
    "DECLARE c CURSOR FOR SELECT a FROM t FOR UPDATE",
    "DECLARE c CURSOR FOR SELECT a FROM t FOR UPDATE OF a",
    "SELECT o.a FROM t AS o WITH (UPDLOCK, ROWLOCK) JOIN u WITH (NOLOCK) ON o.a = u.a",
    "UPDATE t WITH (ROWLOCK) SET a = (SELECT b FROM u WITH (NOLOCK))",
    "SET LOCK_TIMEOUT 300; SELECT a FROM t",
    "SET LOCK_TIMEOUT -1",
    "SET DEADLOCK_PRIORITY LOW",
    "SET DEADLOCK_PRIORITY -10",
    "DECLARE @key int; EXEC @key = sp_getapplock @Resource = @P1, @LockTimeout = 5; SELECT @key",
    "SELECT @@SPID",
    "EXEC sp_executesql N'SET LOCK_TIMEOUT 300; SELECT a FROM t WHERE b = ''it''''s'''",
    "SAVE TRANSACTION a",
    "IF @@TRANCOUNT = 0 BEGIN TRANSACTION",
    "IF 1 = 1 THROW 50000, 'no', 1",
)


@rows("text", SYNTAX)
def test_the_parser_refuses(checker: Checker, text: str) -> None:
    (verdict,) = checker.check([text])
    assert any(SYNTAX[text] in error for error in verdict.syntax), verdict


@rows("text", REFUSED)
def test_a_rule_refuses_what_the_parser_takes(checker: Checker, text: str) -> None:
    (verdict,) = checker.check([text])
    assert verdict.syntax == []
    assert [what.partition(":")[0] for what in verdict.rules] == [REFUSED[text]]


@rows("text", INNER)
def test_a_text_within_a_text_is_parsed_too(checker: Checker, text: str) -> None:
    (verdict,) = checker.check([f"EXEC sp_executesql N'{text}'"])
    assert any(what.startswith(INNER[text]) for what in verdict.rules), verdict


@rows("text", GOOD)
def test_what_is_good_is_taken(checker: Checker, text: str) -> None:
    (verdict,) = checker.check([text])
    assert verdict, verdict


def test_every_rule_refuses_something() -> None:
    assert set(REFUSED.values()) == set(RULES)


# --------------------------------------------------------------------------------------------------
# An unavailable parser is reported with the reason, and nothing half-built remains.


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate a new machine of the kind that has the parser, without a network."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setenv("SA_DOCLOCK_TEST_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.mark.usefixtures("elsewhere")
def test_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnavailableError, match="Linux on x86_64"):
        unpacked()


@pytest.mark.usefixtures("elsewhere")
def test_on_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(UnavailableError, match="Linux on x86_64"):
        unpacked()


@pytest.mark.usefixtures("elsewhere")
def test_without_the_dependency_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="dependency group tsql"):
        unpacked()


@pytest.mark.usefixtures("elsewhere")
def test_where_nothing_proprietary_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "cached", pytest.fail)  # not even from the cache
    monkeypatch.setenv("SA_DOCLOCK_TEST_PROPRIETARY", "no")
    with pytest.raises(UnavailableError, match="PROPRIETARY=no, and Microsoft's T-SQL parser is"):
        unpacked()


@pytest.mark.usefixtures("elsewhere")
def test_a_misspelt_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SA_DOCLOCK_TEST_PROPRIETARY", "0")
    with pytest.raises(ValueError, match="PROPRIETARY is '0'; it can be 'yes' or 'no'"):
        unpacked()


@pytest.mark.usefixtures("elsewhere")
def test_each_wheel_is_announced() -> None:
    pinned = re.findall(r"^([\w-]+)==(\S+)", wheels.WHEELS.read_text("utf-8"), re.MULTILINE)
    for (name, version), received in zip(pinned, wheels.DOWNLOADS, strict=True):
        assert f"{name} {version}" in str(received)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.slow
@pytest.mark.exhaustive
def test_without_a_network(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="No matching distribution found for mssql-cli"):
        unpacked()
    assert list(tmp_path.iterdir()) == []
