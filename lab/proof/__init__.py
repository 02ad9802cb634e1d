"""The proof of one database: its tests, who waits for whom, and the stress run, on one page.

``make mssql-proof URL=...`` runs it for SQL Server, on which no machine of this project can.
"""
