"""The stress fixture: many threads change and read a few documents, and every read is checked.

It needs neither typer nor rich, so that a test can call it::

    with fresh_tables(engine):
        outcome = run(engine, Plan())
    assert outcome.ok
"""

from .model import NAMES, TABLE_NAMES, Detail, Document, State
from .plan import Operation, Plan
from .runner import Outcome, check_locks, run
from .tables import TableError, TableLeftBehind, fill, fresh_tables, left_by_others
from .tally import first_line, percentile
