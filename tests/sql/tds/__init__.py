"""Real drivers and what they send to SQL Server, and its answers, without a server.

A small server of TDS 7.4, "[MS-TDS]: Tabular Data Stream Protocol", listens on the loopback. It
writes down what comes, keeps each session by the rules that Microsoft documents, and answers with
rows or with the errors that a test asks for. It has no rows and no locks.
"""
