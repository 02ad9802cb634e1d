"""The exact SQL, with no server: what is compiled, and what a session sends in which order.

None of it proves that a row is locked.  It proves that the words are there which, on a real server,
lock it (tests/integration/locking), and that they come in the right order.
"""
