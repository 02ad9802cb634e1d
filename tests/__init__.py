"""The tests; conftest.py is where the database matrix enters."""
