"""Other projects' tests that may fail on our sessions, each with its reason; at most ten."""

from __future__ import annotations

from collections.abc import Mapping

DIFFERENCES: Mapping[str, str] = {
    "test/orm/test_scoping.py::ScopedSessionTest::test_attributes": (
        "It asks a scoped_session for each method of the session; SQLAlchemy's has none of ours."
    ),
    "test/ext/asyncio/test_scoping.py::AsyncScopedSessionTest::test_attributes": "As above.",
    "test/ext/asyncio/test_session.py::AsyncSessionQueryTest::test_no_ss_cursor_w_execute": (
        "It expects the name AsyncSession in the text of an error, where the name of ours stands."
    ),
    "test/orm/test_events.py::SessionEventsTest::test_sessionmaker_gen_after_session_listen": (
        "It dispatches before_flush without the arguments of that event, to our listener too."
    ),
    "test/orm/test_session.py::SessionUtilTest::test_get_with_for_update_use": (
        "It counts the statements of get(with_for_update=True): on SQLite BEGIN IMMEDIATE is one more."
    ),
    "test/orm/test_transaction.py::SessionTransactionTest::test_execution_options_begin_transaction": (
        "Its engine is a Mock, which says of itself that it is MariaDB and cannot be asked more."
    ),
    "test/orm/test_transaction.py::SessionTransactionTest::"
    "test_execution_options_ignored_mid_transaction": "As above.",
}
