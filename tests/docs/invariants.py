"""The invariants of docs/invariants.md, each with a test that proves it and where that runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

INTEGRATION: Final = Path(__file__).parents[1] / "integration"


class Invariant(NamedTuple):
    """A sentence that always holds, and the test of it: ``locking/freshness/test_fresh.py::test_name``."""

    sentence: str
    test: str


INVARIANTS: Final = {
    "Holders": [
        Invariant(
            "Of one document there is one holder of ForUpdate; the next waits until its transaction ends.",
            "locking/kinds_of_locks/test_for_update.py::test_the_second_waits_and_sees_what_the_first_wrote",
        ),
        Invariant(
            "Readers by SharedRead are side by side, and a writer waits for them where the lock is a row lock.",
            "lock_order/test_held_already.py::test_readers_are_side_by_side_and_a_writer_is_not",
        ),
        Invariant(
            "A lock ends when the session says so: after commit, rollback and close the next session gets it.",
            "locking/held_locks/test_ledger.py::test_after_it_was_closed",
        ),
        Invariant(
            "Many documents are locked in the order of their keys, whatever the order of the arguments.",
            "lock_order/test_order_of_locking.py::test_who_waits_for_the_first_does_not_hold_the_second",
        ),
        Invariant(
            "With `lock_order=`, a lock against the order is refused before anything is sent.",
            "lock_order/test_lock_order.py::test_against_the_order_is_refused_before_anything_is_sent",
        ),
        Invariant(
            "`held_locks` lists no lock that the server has given up with its transaction.",
            "locking/lost_locks/test_another_transaction.py::test_the_next_lock_knows_it",
        ),
        Invariant(
            "A row is claimed once; a dead worker's row can be claimed again.",
            "claims/test_ending.py::test_each_row_is_processed_by_one_and_that_of_the_dead_can_be_claimed_again",
        ),
        Invariant(
            "In sessions with `checkouts=`, nobody else has the ForUpdate lock of a document that is checked out.",
            "checkouts/test_two_people.py::test_no_lock_of_another_is_granted",
        ),
    ],
    "Fresh reads": [
        Invariant(
            "A lock never returns rows older than the lock, also where the session has read them before.",
            "locking/freshness/test_fresh.py::test_what_was_loaded_in_an_earlier_transaction",
        ),
        Invariant(
            "So are the details that the session has loaded.",
            "locking/freshness/test_fresh.py::test_lines_are_as_another_left_them",
        ),
        Invariant(
            "So are the rows that a listener of the program has read since the call for the lock.",
            "locking/freshness/test_listeners_before_the_lock.py"
            "::test_what_a_listener_reads_before_the_lock_is_read_again",
        ),
        Invariant(
            "So are the rows that the program's own `with_for_update()` returns.",
            "for_update/test_fresh.py::test_no_update_is_lost",
        ),
        Invariant(
            "Header and parts belong together, also after a wait.",
            "documents/test_consistent.py::test_after_a_wait_the_parts_are_those_of_now",
        ),
        Invariant(
            "A SnapshotRead shows parts that are as old as the header.",
            "documents/test_consistent.py::test_a_snapshot_shows_parts_as_old_as_the_header",
        ),
        Invariant(
            "A call for a document that the session already holds sends nothing.",
            "lock_order/test_held_already.py::test_where_all_are_held_nothing_is_sent",
        ),
        Invariant(
            "A lock by a method of the session flushes nothing, and leaves pending changes of other documents alone.",
            "lock_order/test_held_already.py::test_pending_changes_of_another_are_left_alone",
        ),
    ],
    "Refusals": [
        Invariant(
            "A LockingSession writes no declared document without its lock, by a flush or by a construct.",
            "guard/test_statements.py::test_without_the_locks_it_is_refused",
        ),
        Invariant(
            "So it is through a second class that is mapped on the same table.",
            "guard/test_second_classes.py",
        ),
        Invariant(
            "So it is through another object for the table: a second MetaData, a reflected Table, `table()`.",
            "guard/test_other_table_objects.py",
        ),
        Invariant(
            "Nor by a bulk UPDATE that a row comes to match while it runs: nothing of its transaction is committed.",
            "guard/test_between.py::test_a_row_that_comes_to_match_is_not_written",
        ),
        Invariant(
            "Nor by a change of the column that makes a row a part.",
            "guard/test_kinds.py",
        ),
        Invariant(
            "The guard judges a write as the program's `do_orm_execute` listeners leave it.",
            "guard/test_listeners.py::test_a_listener_that_writes_to_another_document_is_refused",
        ),
        Invariant(
            "A row that the account is allowed to read but not to lock is LockNotSupported, not missing.",
            "locking/test_row_security.py",
        ),
        Invariant(
            "A lock on an AUTOCOMMIT connection is LockNotSupported.",
            "lock_order/test_get_entities.py::test_autocommit_is_refused",
        ),
        Invariant(
            "The `with_for_update()` of a UNION, of which SQLAlchemy sends nothing, is LockNotSupported.",
            "for_update/test_for_update.py::test_of_a_union",
        ),
        Invariant(
            "Pending changes of the row to lock are UnsavedChanges before anything is sent.",
            "lock_order/test_held_already.py::test_pending_changes_of_any_are_refused_before_anything_is_sent",
        ),
        Invariant(
            "No method of the session raises a read lock to ForUpdate in the same transaction.",
            "lock_order/test_held_already.py::test_an_upgrade_is_refused_before_anything_is_sent",
        ),
        Invariant(
            "A form that is older than the document is StaleDocument.",
            "versions/test_stale.py::test_a_newer_document_is_refused",
        ),
    ],
    "No losses": [
        Invariant(
            "Nothing is flushed in another transaction than the one of the locks.",
            "locking/lost_locks/test_another_transaction.py::test_nothing_is_flushed",
        ),
        Invariant(
            "Nor is anything committed there.",
            "locking/lost_locks/test_another_transaction.py::test_nothing_is_committed",
        ),
        Invariant(
            "A program that executes no text(), DDL or other foreign SQL pays not one question more.",
            "locking/lost_locks/test_another_transaction.py::test_a_program_without_foreign_statements_is_asked_nothing",
        ),
        Invariant(
            "What a failed lock has opened is rolled back.",
            "lock_order/test_get_entities.py::test_what_it_has_opened_is_rolled_back",
        ),
        Invariant(
            "Functions of `on_commit()` are called after the commit, and dropped with a rollback.",
            "on_commit/test_after_commit.py::test_the_end_of_the_transaction_drops_it",
        ),
        Invariant(
            "Nobody at a gate learns that its change is saved before it is.",
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
    """Return the databases of a test, as its marks say."""
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

    :raises KeyError: there is none.
    """
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return node
    raise KeyError(name)
