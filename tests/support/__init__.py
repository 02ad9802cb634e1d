"""What the tests share: the databases and their servers, actors, waits, models."""
