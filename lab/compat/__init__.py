"""The tests of SQLAlchemy, SQLModel and Flask-SQLAlchemy, run on our sessions in place of theirs."""
