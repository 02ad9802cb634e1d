"""The table of docs/documents.md: a mistake, the outcome in plain SQLAlchemy, and the outcome here.

Each row is a test of this folder that shows both, on real databases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Mistake(NamedTuple):
    test: str
    mistake: str
    plain: str
    here: str


MISTAKES = (
    Mistake(
        "test_the_lock_is_forgotten",
        "Read an order, change it, and never lock it",
        "the second of two writers overwrites the first, without an error",
        "`UnlockedWrite` before anything is sent; it names the order, the row, the attribute and "
        "the statement that read it",
    ),
    Mistake(
        "test_a_detail_is_locked_in_place_of_its_header",
        "Lock a line, not its order",
        "two sessions each lock their own line, and both compute the total from old lines",
        "`UnlockedWrite`, which names the order to lock",
    ),
    Mistake(
        "test_a_bulk_statement_goes_past_the_lock",
        "`update(Line).where(...)` while another session has locked the order",
        "is executed, although the document is locked",
        "`UnlockedWrite`, for UPDATE, DELETE and INSERT alike",
    ),
    Mistake(
        "test_a_line_moves_to_an_order_that_is_not_locked",
        "Move a line to another order, with one of the two locked",
        "the total of the other order is wrong",
        "`UnlockedWrite`: both orders must be locked",
    ),
    Mistake(
        "test_an_object_that_was_read_before_the_lock",
        "Lock an order that the session has read before",
        "`with_for_update()` returns the old values, and the total loses an update",
        "header, collections and lines are read again after the lock",
    ),
    Mistake(
        "test_lines_that_were_read_before_the_lock",
        "Keep a line in a variable from before the lock",
        "it shows its old value, even after a fresh lock with `populate_existing`",
        "it is read again at its next use",
    ),
    Mistake(
        "test_lock_and_lines_in_one_statement",
        "`joinedload()` the lines in the statement that locks",
        "PostgreSQL returns the new header with the lines from before the wait",
        "`LockNotSupported`; a second statement loads the lines, after the grant",
    ),
    Mistake(
        "test_a_read_lock_that_becomes_a_write_lock",
        "Read under a shared lock, then lock for update",
        "two sessions that do so deadlock",
        "`LockUpgradeRefused` at once, in both sessions",
    ),
    Mistake(
        "test_documents_are_locked_in_any_order",
        "Lock several orders in any order",
        "two sessions that lock in different orders deadlock",
        "`get_entities()` locks in key order, whatever the order of its arguments",
    ),
    Mistake(
        "test_classes_are_locked_against_their_order",
        "Lock an order, then its customer, while other code locks the customer first",
        "works in every test, and deadlocks under load",
        "`LockOrderViolation` at the first attempt, with `lock_order=[Customer, Order]`",
    ),
    Mistake(
        "test_a_savepoint_takes_the_lock_along",
        "Continue after a rollback to the savepoint in which the lock was taken",
        "PostgreSQL has released the lock, and the program writes without it",
        "the session forgets the lock: the next `get_entity()` takes it again, and a write raises `UnlockedWrite`",
    ),
    Mistake(
        "test_autocommit",
        "Lock on an AUTOCOMMIT connection",
        "the lock ends with its statement, without an error",
        "`LockNotSupported`",
    ),
    Mistake(
        "test_a_message_for_what_did_not_happen",
        "Send the mail, then commit",
        "the commit fails, but the mail is sent",
        "`session.on_commit(send)` sends it after the commit, or never",
    ),
)


def table() -> Iterator[str]:
    """The lines of the page's table."""
    yield "| Mistake | Plain SQLAlchemy | Here |"
    yield "|---|---|---|"
    for row in MISTAKES:
        yield f"| {row.mistake} | {row.plain} | {row.here} |"
