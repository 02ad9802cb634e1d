"""The tests; plugin.py is where the database matrix enters."""
