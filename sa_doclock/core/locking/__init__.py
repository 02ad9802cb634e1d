"""Taking a lock: one sequence, acquire(), for every kind of lock."""

from .acquire import Found, LockTarget, acquire
from .by_key import ManyByKey, OneByKey, identities_of, single_key
from .locked_rows import LockedRows, objects_of
from .read_by_key import read_entities, read_many, read_one, why_hidden
from .select import RowsOfSelect
from .unsaved_changes import refuse_unsaved
from .wait_limit import WaitLimit
