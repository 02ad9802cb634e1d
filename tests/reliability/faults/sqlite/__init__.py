"""Processes that are killed while they write an SQLite file, and what the others find then.

A child process (``worker.py``) changes folders as the clients of tests/reliability/faults do, and writes down
on disk what it means to commit and what was acknowledged (``worker.py``). ``processes.py``
starts and kills it; ``conftest.py`` compares file and log when it is dead.
"""
