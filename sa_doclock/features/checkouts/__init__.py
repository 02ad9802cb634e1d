"""Check-outs: a document that a person or a job has for minutes or hours, over many transactions.

A check-out is a row of a table, not a lock of the database.  Who asks under the lock of the header
sees it, so that of two only one gets it, and who has lost it cannot write any more.
"""

from .changes import CheckOutCalls, CheckoutOrEpoch, check_lease, check_note, check_owner
from .check_outs import CheckOuts, check_class, checkouts_of
from .table import (
    COLUMNS,
    INDEXES,
    LONGEST_NOTE,
    NAME,
    UtcTimestamp,
    check_table,
    checkout_table,
)
from .table_rows import list_checkouts
