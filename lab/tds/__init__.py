"""A small SQL Server of our own, and the drivers that connect to it: real traffic without Microsoft's server.

The server speaks TDS 7.4 and keeps each session by Microsoft's documented rules.  It stores no rows.
"""
