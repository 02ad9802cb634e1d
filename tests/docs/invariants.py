"""The invariants of docs/invariants.md, each with its test and the databases of that test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

INTEGRATION: Final = Path(__file__).parents[1] / "integration"


class Invariant(NamedTuple):
    """A sentence that always holds, and its test: ``locking/freshness/test_fresh.py::test_name``."""

    sentence: str
    test: str


INVARIANTS: Final = {
    "Holders": [
        Invariant(
            "One session holds ForUpdate of a document; the next waits until its transaction ends.",
            "locking/kinds_of_locks/test_for_update.py::test_the_second_waits_and_sees_what_the_first_wrote",
        ),
        Invariant(
            "Several sessions can hold SharedRead; if it is a row lock, a writer waits for them.",
            "lock_order/test_held_already.py::test_readers_are_side_by_side_and_a_writer_is_not",
        ),
        Invariant(
            "After commit, rollback and close the next session gets the lock.",
            "locking/held_locks/test_ledger.py::test_after_it_was_closed",
        ),
        Invariant(
            "Several documents are locked in key order, whatever the order of the arguments.",
            "lock_order/test_order_of_locking.py::test_who_waits_for_the_first_does_not_hold_the_second",
        ),
        Invariant(
            "A lock against `lock_order=` is refused before a statement is sent.",
            "lock_order/test_lock_order.py::test_against_the_order_is_refused_before_anything_is_sent",
        ),
        Invariant(
            "`held_locks` lists no lock whose transaction the server ended.",
            "locking/lost_locks/test_another_transaction.py::test_the_next_lock_knows_it",
        ),
        Invariant(
            "One worker claims a row; a dead worker's row can be claimed again.",
            "claims/test_ending.py::test_each_row_is_processed_by_one_and_that_of_the_dead_can_be_claimed_again",
        ),
        Invariant(
            "With `checkouts=`, only its owner gets the ForUpdate lock of a checked-out document.",
            "checkouts/test_two_people.py::test_no_lock_of_another_is_granted",
        ),
    ],
    "Fresh reads": [
        Invariant(
            "A lock never returns rows older than the lock, even if the session read them before.",
            "locking/freshness/test_fresh.py::test_what_was_loaded_in_an_earlier_transaction",
        ),
        Invariant(
            "Nor loaded details.",
            "locking/freshness/test_fresh.py::test_lines_are_as_another_left_them",
        ),
        Invariant(
            "Nor rows that a listener read since the call.",
            "locking/freshness/test_listeners_before_the_lock.py"
            "::test_what_a_listener_reads_before_the_lock_is_read_again",
        ),
        Invariant(
            "Nor does the program's own `with_for_update()`.",
            "for_update/test_fresh.py::test_no_update_is_lost",
        ),
        Invariant(
            "Header and parts match, even after a wait.",
            "documents/test_consistent.py::test_after_a_wait_the_parts_are_those_of_now",
        ),
        Invariant(
            "A SnapshotRead shows header and parts of one moment.",
            "documents/test_consistent.py::test_a_snapshot_shows_parts_as_old_as_the_header",
        ),
        Invariant(
            "A call for a document that the session holds sends nothing.",
            "lock_order/test_held_already.py::test_where_all_are_held_nothing_is_sent",
        ),
        Invariant(
            "A lock by a session method flushes nothing, and keeps pending changes of other documents.",
            "lock_order/test_held_already.py::test_pending_changes_of_another_are_left_alone",
        ),
    ],
    "Refusals": [
        Invariant(
            "A LockingSession refuses a write to a declared document without its lock, by a flush or a construct.",
            "guard/test_statements.py::test_without_the_locks_it_is_refused",
        ),
        Invariant(
            "Also through a second class on the same table.",
            "guard/test_second_classes.py",
        ),
        Invariant(
            "Also through another object for the table: a second MetaData, a reflected Table, `table()`.",
            "guard/test_other_table_objects.py",
        ),
        Invariant(
            "Also by a bulk UPDATE that a row comes to match while it runs: its transaction cannot commit.",
            "guard/test_between.py::test_a_row_that_comes_to_match_is_not_written",
        ),
        Invariant(
            "Also by a change of the column that makes a row a part.",
            "guard/test_kinds.py",
        ),
        Invariant(
            "The guard checks a write after the program's `do_orm_execute` listeners.",
            "guard/test_listeners.py::test_a_listener_that_writes_to_another_document_is_refused",
        ),
        Invariant(
            "A row that the account can read but not lock is LockNotSupported, not missing.",
            "locking/test_row_security.py",
        ),
        Invariant(
            "A lock on an AUTOCOMMIT connection is LockNotSupported.",
            "lock_order/test_get_entities.py::test_autocommit_is_refused",
        ),
        Invariant(
            "`with_for_update()` of a UNION, which SQLAlchemy does not send, is LockNotSupported.",
            "for_update/test_for_update.py::test_of_a_union",
        ),
        Invariant(
            "Pending changes of the row to lock raise UnsavedChanges before a statement is sent.",
            "lock_order/test_held_already.py::test_pending_changes_of_any_are_refused_before_anything_is_sent",
        ),
        Invariant(
            "No session method upgrades a read lock to ForUpdate in one transaction.",
            "lock_order/test_held_already.py::test_an_upgrade_is_refused_before_anything_is_sent",
        ),
        Invariant(
            "A form older than the document raises StaleDocument.",
            "versions/test_stale.py::test_a_newer_document_is_refused",
        ),
    ],
    "No losses": [
        Invariant(
            "Nothing is flushed in a transaction other than that of the locks.",
            "locking/lost_locks/test_another_transaction.py::test_nothing_is_flushed",
        ),
        Invariant(
            "Nor committed.",
            "locking/lost_locks/test_another_transaction.py::test_nothing_is_committed",
        ),
        Invariant(
            "A program without text(), DDL or other foreign SQL sends no extra question.",
            "locking/lost_locks/test_another_transaction.py::test_a_program_without_foreign_statements_is_asked_nothing",
        ),
        Invariant(
            "A failed lock rolls back the transaction that it opened.",
            "lock_order/test_get_entities.py::test_what_it_has_opened_is_rolled_back",
        ),
        Invariant(
            "`on_commit()` functions run after the commit; a rollback drops them.",
            "on_commit/test_after_commit.py::test_the_end_of_the_transaction_drops_it",
        ),
        Invariant(
            "A caller of a gate gets no answer before its change is saved.",
            "gate/test_combined_faults.py::test_a_process_is_killed",
        ),
    ],
}


def table() -> Iterator[str]:
    """Yield the tables of the page."""
    for title, invariants in INVARIANTS.items():
        yield f"### {title}"
        yield ""
        yield "| always | test | on |"
        yield "|---|---|---|"
        for sentence, test in invariants:
            yield f"| {sentence} | [`{test}`](../tests/integration/{test.partition('::')[0]}) | {_where(test)} |"
        yield ""


def _where(test: str) -> str:
    """Return the databases of a test, from its marks."""
    file, _, name = test.partition("::")
    module = ast.parse((INTEGRATION / file).read_text(encoding="utf-8"))
    marked: list[ast.AST] = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    if name:
        marked += function_named(module, name).decorator_list
    marks = {
        call.func.attr: [ast.literal_eval(one) for one in call.args]
        for tree in marked
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("databases", "not_databases")
        and all(isinstance(one, ast.Constant) for one in call.args)
    }
    if "databases" in marks:
        return ", ".join(marks["databases"])
    without = [one for one in marks.get("not_databases", ()) if "-" not in one]
    return f"all but {', '.join(without)}" if without else "all"


def function_named(module: ast.Module, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """Return the test of this name.

    :raises KeyError: there is no such test.
    """
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return node
    raise KeyError(name)
