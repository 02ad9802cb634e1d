"""Check-outs: a document that a person or a job has for minutes or hours, over many transactions.

A check-out is a row of a table, not a lock of the database.  Sessions read it under the lock of the
header, so only one of two gets the document, and an owner that has lost it can no longer write.
"""

from .changes import CheckOutCalls, CheckoutOrEpoch, check_lease, check_note, check_owner
from .check_outs import CheckOuts, check_class, checkouts_of
from .table import COLUMNS, INDEXES, LONGEST_NOTE, NAME, UtcTimestamp, check_table, checkout_table
from .table_rows import list_checkouts
