"""The stress fixture: many threads change and read a few documents, and every read is checked.

It needs neither typer nor rich, so that a test can call it::

    with fresh_tables(engine):
        outcome = run(engine, Plan())
    assert outcome.ok
"""

from .run_plan import Operation, Plan
from .runner import RunOutcome, check_locks, percentile, run
from .tables import (
    NAMES,
    TABLE_NAMES,
    Detail,
    Document,
    State,
    TableError,
    TableLeftBehind,
    fill,
    first_line,
    fresh_tables,
    left_by_others,
)
