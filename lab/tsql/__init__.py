"""The library's texts for SQL Server, read by Microsoft's own T-SQL parser, ScriptDom.

It is inside the wheel ``mssql-cli``, and runs on the .NET runtime inside the wheel ``dotnetcore2``.
Their own dependencies are old, so both are unpacked into the cache folder and never installed.
"""
