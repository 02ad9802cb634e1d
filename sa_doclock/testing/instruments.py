"""Readings of statements, databases and lines of the program, for sa-doclock-audit.

The names keep their meaning within one version of sa_doclock.  Some of them need private names of
SQLAlchemy, which stay in one tested place: a copy could break with the next SQLAlchemy.
"""

from ..caller import (
    count_as_ours,
    frames,
    is_of_library,
    is_of_sqlalchemy,
    line_of_program,
    parent_of,
)
from ..dialects import find_strategy, side_connection, strategy_class
from ..dml_internals import conflict_of, values_of
from ..functions import check_function
from ..keys import DocumentKey, LockedName, printable
from ..options import is_row_lock
from ..sqlalchemy_internals import (
    all_mappers,
    buffer_rows,
    for_update_clause,
    for_update_of,
    for_update_tables,
    has_limit,
    is_flushing,
    keep_rows,
    order_of,
    written_out,
)
from .listening import listening
from .lock_waits import COMMIT, is_kit_asking, locks_database
from .loops import AsyncConnections, LoopThread, check_functions
