"""Clients go on changing documents while faults are injected; then everything is verified.

Each kind of fault has a file of its own, and its test. What the clients do is in ``clients.py``
and ``ways.py``; each keeps a log of what it meant to commit and of what was acknowledged
(``model.py``). Afterwards, from a connection of its own, ``afterwards.py`` compares the log with the
database, ``leftovers.py`` looks for locks, and ``afterwards.py`` for what the pool has kept.
"""
