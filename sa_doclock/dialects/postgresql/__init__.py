"""PostgreSQL 12 and later: psycopg, psycopg2, asyncpg, pg8000."""

from .locks import PostgreSQLLocks

__all__ = ["PostgreSQLLocks"]
