"""Random writes to random documents, and the database's own word for whose rows they were."""
