"""Adoption: SQLAlchemy's own ``with_for_update()`` is a lock of the session: real, recorded and fresh.

A part that keeps nothing of its session.  Its hook ``executor`` executes a select that has a
``with_for_update()`` in place of the session; ``check_statements()`` checks locks within other
statements checked before they are sent.
"""

from .session_adoption import SessionAdoption
