"""Finds errors on the syntax tree that SQL Server detects and its parser does not.

Sources: "Database Engine events and errors", "Table hints", "SET LOCK_TIMEOUT", "SET
DEADLOCK_PRIORITY", "sp_executesql", all at https://learn.microsoft.com/sql/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Nodes = Sequence[Any]
Parse = Callable[[str], tuple[Nodes, list[str]]]

_DIRTY = frozenset({"NOLOCK", "READUNCOMMITTED"})
_GRANULARITIES = frozenset({"ROWLOCK", "PAGLOCK", "TABLOCK", "TABLOCKX"})
_LEVELS = _DIRTY | frozenset(
    {"HOLDLOCK", "READCOMMITTED", "READCOMMITTEDLOCK", "REPEATABLEREAD", "SERIALIZABLE", "SNAPSHOT"}
)
#: At most one of each group; others tried all pairs on SQL Server 2025.  "Table hints" puts
#: READCOMMITTEDLOCK and ROWLOCK in one group, but the server accepts both together.
_EXCLUSIVE = (_GRANULARITIES, _LEVELS, frozenset({"UPDLOCK", "XLOCK"}))
#: A read that takes no locks cannot combine with a lock hint.
_NOT_DIRTY = _GRANULARITIES | frozenset({"UPDLOCK", "XLOCK"})
_PARAMETER = re.compile(r"@P\d+$")
_GLOBALS = frozenset({"@@SPID", "@@TRANCOUNT", "@@LOCK_TIMEOUT", "@@VERSION", "@@MAX_CONNECTIONS"})
_PROCEDURES = frozenset({"sp_executesql", "sp_getapplock"})
_SETTINGS = {  # with their possible values
    "LockTimeout": re.compile(r"-1|\d+"),
    "DeadlockPriority": re.compile(r"LOW|NORMAL|HIGH|-?(\d|10)"),
}
_LITERALS = frozenset({"IntegerLiteral", "IdentifierLiteral"})


def broken(nodes: Nodes, parse: Parse) -> Iterator[str]:
    """Yield the mistakes in this tree, including those in texts within it."""
    for number, rule in RULES.items():
        for what in rule(nodes):
            yield f"{number}: {what}"
    for text in _texts_to_execute(nodes):
        inner, errors = parse(text)
        yield from (f"within sp_executesql: {error}" for error in errors)
        yield from (f"within sp_executesql: {what}" for what in broken(inner, parse))


def _for_update(nodes: Nodes) -> Iterator[str]:
    cursors = _of(nodes, "CursorDefinition")
    for clause in _of(nodes, "UpdateForClause", "ReadOnlyForClause"):
        if not any(_within(clause, cursor) for cursor in cursors):
            yield "FOR UPDATE outside of a cursor"


def _conflicting_hints(nodes: Nodes) -> Iterator[str]:
    for table in _of(nodes, "NamedTableReference"):
        hints = _hints(table)
        found = [hints & group for group in _EXCLUSIVE if len(hints & group) > 1]
        if hints & _DIRTY and hints & _NOT_DIRTY:
            found.append(hints & (_DIRTY | _NOT_DIRTY))
        if found:
            yield f"conflicting hints: {', '.join(sorted(found[0]))}"


def _dirty_target(nodes: Nodes) -> Iterator[str]:
    kinds = ("Update", "Delete", "Merge", "Insert")
    for change in _of(nodes, *(f"{kind}Specification" for kind in kinds)):
        if _kind(change.Target) == "NamedTableReference" and _hints(change.Target) & _DIRTY:
            yield "the target of a change cannot be read dirty"


def _value_of_setting(nodes: Nodes) -> Iterator[str]:
    for command in _of(nodes, "GeneralSetCommand"):
        name, value = str(command.CommandType), command.Parameter
        if name in _SETTINGS:
            shown = _literal(value)
            if shown is None or not _SETTINGS[name].fullmatch(shown.upper()):
                yield f"{name} takes another literal"


def _undeclared(nodes: Nodes) -> Iterator[str]:
    declared = {element.VariableName.Value for element in _of(nodes, "DeclareVariableElement")}
    names_of_parameters = {
        given.Variable.StartOffset for given in _of(nodes, "ExecuteParameter") if given.Variable
    }
    for variable in _of(nodes, "VariableReference"):
        known = variable.Name in declared or _PARAMETER.match(variable.Name)
        if not known and variable.StartOffset not in names_of_parameters:
            yield f"{variable.Name} is not declared"
    for variable in _of(nodes, "GlobalVariableExpression"):
        if variable.Name.upper() not in _GLOBALS:
            yield f"{variable.Name} is not declared"


def _not_nvarchar(nodes: Nodes) -> Iterator[str]:
    for given in _executed(nodes):
        if not getattr(given, "IsNational", False):
            yield "sp_executesql takes N'...'"


def _unknown_procedure(nodes: Nodes) -> Iterator[str]:
    # A batch may begin with a bare procedure name: SAVEPOINT a and many misspelt verbs parse as calls.
    for call in _of(nodes, "ExecutableProcedureReference"):
        if (name := _procedure(call)) not in _PROCEDURES:
            yield f"no procedure {name}"


#: By the server's error number; settings have no such number.
RULES: Mapping[str, Callable[[Nodes], Iterator[str]]] = {
    "1003": _for_update,
    "1047": _conflicting_hints,
    "1065": _dirty_target,
    "SET": _value_of_setting,
    "137": _undeclared,
    "214": _not_nvarchar,
    "2812": _unknown_procedure,
}


def _executed(nodes: Nodes) -> Iterator[Any]:
    for call in _of(nodes, "ExecutableProcedureReference"):
        if _procedure(call) == "sp_executesql":
            yield call.Parameters[0].ParameterValue


def _texts_to_execute(nodes: Nodes) -> Iterator[str]:
    for given in _executed(nodes):
        if _kind(given) == "StringLiteral":
            yield given.Value


def _procedure(call: Any) -> str:
    reference = call.ProcedureReference.ProcedureReference
    return "@" if reference is None else str(reference.Name.BaseIdentifier.Value)


def _literal(value: Any) -> str | None:
    if _kind(value) == "UnaryExpression" and str(value.UnaryExpressionType) == "Negative":
        inner = _literal(value.Expression)
        return None if inner is None else f"-{inner}"
    return str(value.Value) if _kind(value) in _LITERALS else None


def _hints(table: Any) -> frozenset[str]:
    return frozenset(str(hint.HintKind).upper() for hint in table.TableHints)


def _of(nodes: Nodes, *kinds: str) -> list[Any]:
    return [node for node in nodes if _kind(node) in kinds]


def _kind(node: Any) -> str:
    return type(node).__name__


def _within(node: Any, outer: Any) -> bool:
    end = outer.StartOffset + outer.FragmentLength
    return bool(outer.StartOffset <= node.StartOffset < end)
