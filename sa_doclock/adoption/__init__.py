"""Adoption: SQLAlchemy's own ``with_for_update()`` becomes a lock of the session: real, recorded and fresh.

The part keeps no state of its session.  Its hook ``executor`` executes a select with
``with_for_update()`` instead of the session; ``check_statements()`` checks the locks within other
statements before they are sent.
"""

from .session_adoption import SessionAdoption
