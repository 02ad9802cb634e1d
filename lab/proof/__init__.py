"""The proof of one database on one page: its tests, its lock waits, and the stress run.

``make mssql-proof URL=...`` runs it for SQL Server, which no machine of this project can run.
"""
