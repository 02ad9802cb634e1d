"""Checks the library's SQL Server texts with Microsoft's own T-SQL parser, ScriptDom.

It comes from the wheel ``mssql-cli``, and runs on the .NET runtime from the wheel ``dotnetcore2``.
Their own dependencies are old, so both are unpacked into the cache folder and never installed.
"""
