"""``make versions``: the essential tests on each version of servers, drivers, SQLAlchemy, SQLite and Python.

A component (components.py) is one version of one of them. Its run writes one file in ``results``. Tests
compare docs/versions-tested.md, the README's table of databases and the checks of check_database() with
these files.
"""
