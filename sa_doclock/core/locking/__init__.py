"""The taking of a lock: one sequence, acquire(), for every kind of lock."""

from .acquire import LockTarget, acquire
from .by_key import (
    ManyByKey,
    OneByKey,
    identities_of,
    read_entities,
    read_one,
    single_key,
)
from .hidden_rows import why_hidden
from .refresh import refuse_unsaved
from .rows import LockedRows, objects_of
from .select import RowsOfSelect
