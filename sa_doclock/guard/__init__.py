"""The write guard: no write to a declared document without its ForUpdate lock.

It decides by row.  A row belongs to a document by its table, whichever class or statement writes it.

1. Find the rows that are written: the objects of a flush (``write_guard.py``), or those of a ``Write``, which
   is a statement or a bulk method with its WHERE or values (``targets.py``, ``touched.py``).
2. Find their documents.  For most rows the loaded objects show them without a query (``rules.py``).
   Otherwise the guard asks the database: by the relationships of the class, or by the table and key
   (``full_check.py``); for a ``Write`` by its WHERE, or by the keys of its rows (``statement_check.py``).
   A row that moves has two documents.
3. Compare them with the locks.  If the transaction neither holds one of them ForUpdate nor has inserted it,
   ``allow()`` refuses the write before anything is sent (``refusals.py``).
4. Check again: each row of a flush that may have changed, when it is written, and the number of rows of a
   statement (``dml.py``), because listeners and other transactions may add rows.
5. When a statement is sent, refuse rows in another schema or database than the locked documents
   (``write_guard.py``).

``write_guard.py`` connects this to the session and to the events of the mappers.  The keys of inserted
headers need no lock while the transaction's ledger has them.
"""

from .dml import atomic_update
from .refusals import ReadProvenance, check_guard_mode
from .statement_check import is_atomic
from .targets import Target, Write, is_header_target, targets_here
from .touched import rows_written, touched_rows
from .write_guard import WriteGuard
