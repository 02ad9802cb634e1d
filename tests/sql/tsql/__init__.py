"""The statements for SQL Server, read by Microsoft's own T-SQL parser (lab/tsql)."""
