"""The statements of test_plans.py, which SQL Server is asked about its locks and plans by."""

from __future__ import annotations

from typing import Final

#: The nonclustered indexes that a table has, by the name of the case.  The last one covers all that
#: a statement reads of the key and one more column.
INDEXES: Final = {
    "none": (),
    "one": ("CREATE INDEX pl_one ON pl_order (total)",),
    "many": (
        "CREATE INDEX pl_one ON pl_order (total)",
        "CREATE INDEX pl_two ON pl_order (total, note)",
        "CREATE UNIQUE INDEX pl_three ON pl_order (id) INCLUDE (total)",
    ),
}
#: The granted locks of rows of a session: the table, the index, the mode; 1 is the clustered index.
ROW_LOCKS: Final = """
    SELECT OBJECT_NAME(p.object_id), p.index_id, l.resource_type, l.request_mode, COUNT(*)
    FROM sys.dm_tran_locks AS l JOIN sys.partitions AS p
    ON p.hobt_id = l.resource_associated_entity_id
    WHERE l.request_session_id = :session AND l.request_status = 'GRANT'
    AND l.resource_database_id = DB_ID() AND l.resource_type IN ('KEY', 'RID')
    GROUP BY OBJECT_NAME(p.object_id), p.index_id, l.resource_type, l.request_mode"""
SESSION_ID: Final = "SELECT @@SPID"
SHOW_PLAN: Final = "SET SHOWPLAN_XML ON"
HIDE_PLAN: Final = "SET SHOWPLAN_XML OFF"
STATEMENTS: Final = (
    *INDEXES["many"],
    ROW_LOCKS.replace(":session", "51"),
    SESSION_ID,
    SHOW_PLAN,
    HIDE_PLAN,
)
