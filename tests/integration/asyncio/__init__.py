"""AsyncLockingSession on the asynchronous drivers of each database."""
