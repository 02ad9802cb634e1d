"""The write guard: no write to a declared document without its ForUpdate lock.

It decides by rows.  A row belongs to a document by its table, whichever class or statement writes it.

1. Which rows are written?  A flush has objects (``write_guard.py``); a statement has a class or table, and a
   WHERE or values (``targets.py``, ``touched.py``).
2. Of which documents are they?  The loaded objects tell it, without a question, for most rows
   (``rules.py``).  Else the database is asked: by the relationships of the class (``full_check.py``), by
   the table and key where the class does not tell (``rules.py``), by the WHERE of the statement
   or the keys of its rows (``statement_check.py``).  A row that moves is of two documents.
3. Does the transaction hold all of them ForUpdate, or has it inserted them?  If not, the write is
   refused before anything is sent (``refusals.py``).
4. Each row of a flush that may have changed meanwhile is checked when it is written, and the rows of
   a statement are counted (``dml.py``): listeners and other transactions may bring in others.
5. Rows of another schema or database than that of the documents held are refused when the statement is
   sent (``write_guard.py``).

``write_guard.py`` joins this to the session and to the events of the mappers.  The keys of inserted
headers need no lock, as long as the ledger lives that has them.
"""

from .dml import atomic_update, targets_here
from .refusals import ReadProvenance, check_guard_mode
from .statement_check import is_atomic
from .targets import Execution, Target, is_header_target
from .touched import rows_written, touched_rows
from .write_guard import WriteGuard
