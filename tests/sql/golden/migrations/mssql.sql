-- mssql: what the Alembic operations send, a batch at a time, and the script that --sql writes.

-- op.enable_snapshot_isolation() ------------------------------------------------------------------
-- in a transaction
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()
GO

-- autocommit
SELECT s.session_id, s.login_name, s.host_name, s.program_name,
    DATEDIFF(second, a.transaction_begin_time, GETDATE()) AS seconds
FROM sys.dm_tran_database_transactions AS d
JOIN sys.dm_tran_active_transactions AS a ON a.transaction_id = d.transaction_id
JOIN sys.dm_tran_session_transactions AS t ON t.transaction_id = d.transaction_id
JOIN sys.dm_exec_sessions AS s ON s.session_id = t.session_id
WHERE d.database_id = DB_ID() AND s.session_id <> @@SPID
ORDER BY a.transaction_begin_time
GO

-- autocommit
ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON
GO

-- autocommit
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- op.enable_snapshot_isolation(), --sql -----------------------------------------------------------
BEGIN TRANSACTION;

COMMIT;

GO

-- waits until every transaction that is open in the database has ended, blocks nobody
IF DB_NAME() IN ('master', 'model', 'msdb', 'tempdb')
    THROW 50000, 'ALLOW_SNAPSHOT_ISOLATION is not set in a system database, connect to your own', 1;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND snapshot_isolation_state = 1)
    ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND snapshot_isolation_state = 1)
    THROW 50000, 'ALLOW_SNAPSHOT_ISOLATION is not ON yet, see sys.databases.snapshot_isolation_state', 1;

GO

BEGIN TRANSACTION;

COMMIT;

GO

-- op.enable_snapshot_isolation(read_committed_snapshot=True) --------------------------------------
-- in a transaction
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()
GO

-- autocommit
SELECT s.session_id, s.login_name, s.host_name, s.program_name,
    DATEDIFF(second, s.login_time, GETDATE()) AS seconds
FROM sys.dm_exec_sessions AS s
WHERE s.database_id = DB_ID() AND s.is_user_process = 1 AND s.session_id <> @@SPID
ORDER BY s.login_time
GO

-- autocommit
ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON WITH NO_WAIT
GO

-- autocommit
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()
GO

-- autocommit
SELECT s.session_id, s.login_name, s.host_name, s.program_name,
    DATEDIFF(second, a.transaction_begin_time, GETDATE()) AS seconds
FROM sys.dm_tran_database_transactions AS d
JOIN sys.dm_tran_active_transactions AS a ON a.transaction_id = d.transaction_id
JOIN sys.dm_tran_session_transactions AS t ON t.transaction_id = d.transaction_id
JOIN sys.dm_exec_sessions AS s ON s.session_id = t.session_id
WHERE d.database_id = DB_ID() AND s.session_id <> @@SPID
ORDER BY a.transaction_begin_time
GO

-- autocommit
ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON
GO

-- autocommit
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- op.enable_snapshot_isolation(read_committed_snapshot=True), --sql -------------------------------
BEGIN TRANSACTION;

COMMIT;

GO

-- fails at once (5070) while any other connection to the database is open
IF DB_NAME() IN ('master', 'model', 'msdb', 'tempdb')
    THROW 50000, 'READ_COMMITTED_SNAPSHOT is not set in a system database, connect to your own', 1;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND is_read_committed_snapshot_on = 1)
    ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON WITH NO_WAIT;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND is_read_committed_snapshot_on = 1)
    THROW 50000, 'READ_COMMITTED_SNAPSHOT is not ON yet, see sys.databases.is_read_committed_snapshot_on', 1;

GO

-- waits until every transaction that is open in the database has ended, blocks nobody
IF DB_NAME() IN ('master', 'model', 'msdb', 'tempdb')
    THROW 50000, 'ALLOW_SNAPSHOT_ISOLATION is not set in a system database, connect to your own', 1;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND snapshot_isolation_state = 1)
    ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND snapshot_isolation_state = 1)
    THROW 50000, 'ALLOW_SNAPSHOT_ISOLATION is not ON yet, see sys.databases.snapshot_isolation_state', 1;

GO

BEGIN TRANSACTION;

COMMIT;

GO

-- op.disable_snapshot_isolation() -----------------------------------------------------------------
-- in a transaction
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()
GO

-- autocommit
SELECT s.session_id, s.login_name, s.host_name, s.program_name,
    DATEDIFF(second, a.transaction_begin_time, GETDATE()) AS seconds
FROM sys.dm_tran_database_transactions AS d
JOIN sys.dm_tran_active_transactions AS a ON a.transaction_id = d.transaction_id
JOIN sys.dm_tran_session_transactions AS t ON t.transaction_id = d.transaction_id
JOIN sys.dm_exec_sessions AS s ON s.session_id = t.session_id
WHERE d.database_id = DB_ID() AND s.session_id <> @@SPID
ORDER BY a.transaction_begin_time
GO

-- autocommit
ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION OFF
GO

-- autocommit
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- op.disable_snapshot_isolation(), --sql ----------------------------------------------------------
BEGIN TRANSACTION;

COMMIT;

GO

-- waits until every transaction that is open in the database has ended, blocks nobody
IF DB_NAME() IN ('master', 'model', 'msdb', 'tempdb')
    THROW 50000, 'ALLOW_SNAPSHOT_ISOLATION is not set in a system database, connect to your own', 1;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND snapshot_isolation_state = 0)
    ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION OFF;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND snapshot_isolation_state = 0)
    THROW 50000, 'ALLOW_SNAPSHOT_ISOLATION is not OFF yet, see sys.databases.snapshot_isolation_state', 1;

GO

BEGIN TRANSACTION;

COMMIT;

GO

-- op.disable_snapshot_isolation(read_committed_snapshot=True) -------------------------------------
-- in a transaction
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()
GO

-- autocommit
SELECT s.session_id, s.login_name, s.host_name, s.program_name,
    DATEDIFF(second, s.login_time, GETDATE()) AS seconds
FROM sys.dm_exec_sessions AS s
WHERE s.database_id = DB_ID() AND s.is_user_process = 1 AND s.session_id <> @@SPID
ORDER BY s.login_time
GO

-- autocommit
ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT OFF WITH NO_WAIT
GO

-- autocommit
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()
GO

-- autocommit
SELECT s.session_id, s.login_name, s.host_name, s.program_name,
    DATEDIFF(second, a.transaction_begin_time, GETDATE()) AS seconds
FROM sys.dm_tran_database_transactions AS d
JOIN sys.dm_tran_active_transactions AS a ON a.transaction_id = d.transaction_id
JOIN sys.dm_tran_session_transactions AS t ON t.transaction_id = d.transaction_id
JOIN sys.dm_exec_sessions AS s ON s.session_id = t.session_id
WHERE d.database_id = DB_ID() AND s.session_id <> @@SPID
ORDER BY a.transaction_begin_time
GO

-- autocommit
ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION OFF
GO

-- autocommit
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- in a transaction
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
GO

-- op.disable_snapshot_isolation(read_committed_snapshot=True), --sql ------------------------------
BEGIN TRANSACTION;

COMMIT;

GO

-- fails at once (5070) while any other connection to the database is open
IF DB_NAME() IN ('master', 'model', 'msdb', 'tempdb')
    THROW 50000, 'READ_COMMITTED_SNAPSHOT is not set in a system database, connect to your own', 1;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND is_read_committed_snapshot_on = 0)
    ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT OFF WITH NO_WAIT;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND is_read_committed_snapshot_on = 0)
    THROW 50000, 'READ_COMMITTED_SNAPSHOT is not OFF yet, see sys.databases.is_read_committed_snapshot_on', 1;

GO

-- waits until every transaction that is open in the database has ended, blocks nobody
IF DB_NAME() IN ('master', 'model', 'msdb', 'tempdb')
    THROW 50000, 'ALLOW_SNAPSHOT_ISOLATION is not set in a system database, connect to your own', 1;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND snapshot_isolation_state = 0)
    ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION OFF;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND snapshot_isolation_state = 0)
    THROW 50000, 'ALLOW_SNAPSHOT_ISOLATION is not OFF yet, see sys.databases.snapshot_isolation_state', 1;

GO

BEGIN TRANSACTION;

COMMIT;

GO
