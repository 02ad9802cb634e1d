"""Named locks: session.lock_key() and doclock_key()."""
