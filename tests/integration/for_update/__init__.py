"""SQLAlchemy's own with_for_update() in a LockingSession."""
