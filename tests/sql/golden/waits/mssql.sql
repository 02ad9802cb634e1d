-- mssql: what is asked, over a connection of its own, after a lock was not granted to a session made
-- with diagnose=True, and by lock_waits().

-- get_entity()
SET LOCK_TIMEOUT 500
SELECT l.request_session_id, MAX(CASE WHEN l.resource_type = 'OBJECT' THEN 1 ELSE 0 END)
FROM sys.dm_tran_locks AS l LEFT JOIN sys.partitions AS p
ON p.hobt_id = l.resource_associated_entity_id
WHERE l.resource_database_id = DB_ID() AND l.request_status = 'GRANT'
AND l.request_session_id <> @@SPID
AND (l.resource_type IN ('KEY', 'RID', 'PAGE', 'HOBT') AND p.object_id = OBJECT_ID(?)
AND REPLACE(l.request_mode, '-', '_') IN ('U', 'X', 'UIX', 'BU', 'RangeS_U', 'RangeI_U',
'RangeI_X', 'RangeX_S', 'RangeX_U', 'RangeX_X') OR l.resource_type = 'XACT' AND l.request_mode = 'X'
OR l.resource_type = 'OBJECT' AND l.resource_associated_entity_id = OBJECT_ID(?)
AND l.request_mode IN ('S', 'SIX', 'U', 'UIX', 'X', 'BU', 'Sch-M'))
GROUP BY l.request_session_id  -- 'shop_order', 'shop_order'
SELECT s.session_id, s.login_name, s.program_name, s.status,
(SELECT MAX(DATEDIFF(second, a.transaction_begin_time, SYSDATETIME()))
FROM sys.dm_tran_session_transactions AS t JOIN sys.dm_tran_active_transactions AS a
ON a.transaction_id = t.transaction_id WHERE t.session_id = s.session_id),
COALESCE(running.text, latest.text), s.host_name
FROM sys.dm_exec_sessions AS s
LEFT JOIN sys.dm_exec_requests AS r ON r.session_id = s.session_id
LEFT JOIN sys.dm_exec_connections AS c ON c.session_id = s.session_id
AND c.parent_connection_id IS NULL
OUTER APPLY sys.dm_exec_sql_text(r.sql_handle) AS running
OUTER APPLY sys.dm_exec_sql_text(c.most_recent_sql_handle) AS latest
WHERE s.session_id IN (?)  -- 1

-- a set
SET LOCK_TIMEOUT 500
SELECT l.request_session_id, MAX(CASE WHEN l.resource_type = 'OBJECT' THEN 1 ELSE 0 END)
FROM sys.dm_tran_locks AS l LEFT JOIN sys.partitions AS p
ON p.hobt_id = l.resource_associated_entity_id
WHERE l.resource_database_id = DB_ID() AND l.request_status = 'GRANT'
AND l.request_session_id <> @@SPID
AND (l.resource_type IN ('KEY', 'RID', 'PAGE', 'HOBT') AND p.object_id = OBJECT_ID(?)
AND REPLACE(l.request_mode, '-', '_') IN ('U', 'X', 'UIX', 'BU', 'RangeS_U', 'RangeI_U',
'RangeI_X', 'RangeX_S', 'RangeX_U', 'RangeX_X') OR l.resource_type = 'XACT' AND l.request_mode = 'X'
OR l.resource_type = 'OBJECT' AND l.resource_associated_entity_id = OBJECT_ID(?)
AND l.request_mode IN ('S', 'SIX', 'U', 'UIX', 'X', 'BU', 'Sch-M'))
GROUP BY l.request_session_id  -- 'shop_order', 'shop_order'
SELECT s.session_id, s.login_name, s.program_name, s.status,
(SELECT MAX(DATEDIFF(second, a.transaction_begin_time, SYSDATETIME()))
FROM sys.dm_tran_session_transactions AS t JOIN sys.dm_tran_active_transactions AS a
ON a.transaction_id = t.transaction_id WHERE t.session_id = s.session_id),
COALESCE(running.text, latest.text), s.host_name
FROM sys.dm_exec_sessions AS s
LEFT JOIN sys.dm_exec_requests AS r ON r.session_id = s.session_id
LEFT JOIN sys.dm_exec_connections AS c ON c.session_id = s.session_id
AND c.parent_connection_id IS NULL
OUTER APPLY sys.dm_exec_sql_text(r.sql_handle) AS running
OUTER APPLY sys.dm_exec_sql_text(c.most_recent_sql_handle) AS latest
WHERE s.session_id IN (?)  -- 1

-- lock_waits()
SET LOCK_TIMEOUT 500
SELECT w.session_id, w.blocking_session_id,
CASE WHEN l.resource_database_id = DB_ID() THEN
COALESCE(OBJECT_SCHEMA_NAME(p.object_id) + '.' + OBJECT_NAME(p.object_id),
CASE WHEN l.resource_type = 'OBJECT'
THEN OBJECT_SCHEMA_NAME(l.resource_associated_entity_id) + '.'
+ OBJECT_NAME(l.resource_associated_entity_id) END) END,
CASE WHEN l.resource_type IN ('KEY', 'RID', 'APPLICATION', 'XACT')
THEN l.resource_description END,
w.wait_duration_ms / 1000.0
FROM sys.dm_os_waiting_tasks AS w
JOIN sys.dm_tran_locks AS l ON l.lock_owner_address = w.resource_address
LEFT JOIN sys.partitions AS p ON p.hobt_id = l.resource_associated_entity_id
WHERE w.blocking_session_id IS NOT NULL AND w.blocking_session_id <> w.session_id
SELECT s.session_id, s.login_name, s.program_name, s.status,
(SELECT MAX(DATEDIFF(second, a.transaction_begin_time, SYSDATETIME()))
FROM sys.dm_tran_session_transactions AS t JOIN sys.dm_tran_active_transactions AS a
ON a.transaction_id = t.transaction_id WHERE t.session_id = s.session_id),
COALESCE(running.text, latest.text), s.host_name
FROM sys.dm_exec_sessions AS s
LEFT JOIN sys.dm_exec_requests AS r ON r.session_id = s.session_id
LEFT JOIN sys.dm_exec_connections AS c ON c.session_id = s.session_id
AND c.parent_connection_id IS NULL
OUTER APPLY sys.dm_exec_sql_text(r.sql_handle) AS running
OUTER APPLY sys.dm_exec_sql_text(c.most_recent_sql_handle) AS latest
WHERE s.session_id IN (?)  -- 1
