"""Each file of the package by itself, with no server; SQLite on a file where a session is needed."""
