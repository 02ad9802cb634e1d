"""Runs the tests of SQLAlchemy, SQLModel and Flask-SQLAlchemy on our sessions instead of theirs."""
