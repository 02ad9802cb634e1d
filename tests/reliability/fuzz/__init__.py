"""Every combination of lock, entity, statement, state and database: a lock in the SQL, or an error."""
