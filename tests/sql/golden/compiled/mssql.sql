-- mssql: what each kind of select is compiled to.  Above each text stand the locks that have it; on
-- SQL Server and SQLite, a lock that has the text of None_ is in the transaction, not in the text.

-- plain -------------------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order;

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK);

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK);

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK);

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT);

-- filtered, in order ------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > ? ORDER BY shop_order.id;

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK)
WHERE shop_order.total > ? ORDER BY shop_order.id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE shop_order.total > ? ORDER BY shop_order.id;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)
WHERE shop_order.total > ? ORDER BY shop_order.id;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT)
WHERE shop_order.total > ? ORDER BY shop_order.id;

-- limit -------------------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT TOP 10 shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id;

-- NoLock
SELECT TOP 10 shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK) ORDER BY shop_order.id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT TOP 10 shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY shop_order.id;

-- ForUpdate
SELECT TOP 10 shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK) ORDER BY shop_order.id;

-- ForUpdate|NoWait
SELECT TOP 10 shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT) ORDER BY shop_order.id;

-- limit and offset --------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK) ORDER BY shop_order.id
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY shop_order.id
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK) ORDER BY shop_order.id
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT) ORDER BY shop_order.id
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- offset ------------------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
OFFSET ? ROWS;

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK) ORDER BY shop_order.id
OFFSET ? ROWS;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY shop_order.id
OFFSET ? ROWS;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK) ORDER BY shop_order.id
OFFSET ? ROWS;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT) ORDER BY shop_order.id
OFFSET ? ROWS;

-- aliased -----------------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > ?;

-- NoLock
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o WITH (NOLOCK)
WHERE o.total > ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE o.total > ?;

-- ForUpdate
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o WITH (UPDLOCK, ROWLOCK)
WHERE o.total > ?;

-- ForUpdate|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o WITH (UPDLOCK, ROWLOCK, NOWAIT)
WHERE o.total > ?;

-- aliased, limit ----------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT TOP 10 o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id;

-- NoLock
SELECT TOP 10 o.id, o.customer_id, o.total
FROM shop_order AS o WITH (NOLOCK) ORDER BY o.id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT TOP 10 o.id, o.customer_id, o.total
FROM shop_order AS o WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY o.id;

-- ForUpdate
SELECT TOP 10 o.id, o.customer_id, o.total
FROM shop_order AS o WITH (UPDLOCK, ROWLOCK) ORDER BY o.id;

-- ForUpdate|NoWait
SELECT TOP 10 o.id, o.customer_id, o.total
FROM shop_order AS o WITH (UPDLOCK, ROWLOCK, NOWAIT) ORDER BY o.id;

-- aliased, limit and offset -----------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- NoLock
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o WITH (NOLOCK) ORDER BY o.id
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY o.id
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- ForUpdate
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o WITH (UPDLOCK, ROWLOCK) ORDER BY o.id
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- ForUpdate|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o WITH (UPDLOCK, ROWLOCK, NOWAIT) ORDER BY o.id
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- join --------------------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ?;

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK) JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ?;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK) JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ?;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT) JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ?;

-- join with an alias of itself --------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_order AS other ON shop_order.total < other.total;

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK) JOIN shop_order AS other ON shop_order.total < other.total;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) JOIN shop_order AS other ON shop_order.total < other.total;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK) JOIN shop_order AS other ON shop_order.total < other.total;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT) JOIN shop_order AS other ON shop_order.total < other.total;

-- outer join --------------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL;

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK) LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK) LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT) LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL;

-- EXISTS ------------------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > ?);

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK)
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > ?);

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > ?);

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > ?);

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT)
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > ?);

-- IN a subquery -----------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line);

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK)
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line);

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line);

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line);

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT)
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line);

-- subquery of its own table -----------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other);

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK)
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other);

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other);

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other);

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT)
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other);

-- two entities, the first -------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order WITH (NOLOCK) JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order WITH (UPDLOCK, ROWLOCK) JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT) JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- two entities, the second ------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer WITH (NOLOCK) ON shop_customer.id = shop_order.customer_id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) ON shop_customer.id = shop_order.customer_id;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer WITH (UPDLOCK, ROWLOCK) ON shop_customer.id = shop_order.customer_id;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer WITH (UPDLOCK, ROWLOCK, NOWAIT) ON shop_customer.id = shop_order.customer_id;

-- composite key -----------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher;

-- NoLock
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (NOLOCK);

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK);

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK);

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, NOWAIT);

-- composite key, join -----------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > ?;

-- NoLock
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (NOLOCK) JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > ?;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK) JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > ?;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, NOWAIT) JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > ?;

-- composite key, limit and offset -----------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- NoLock
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (NOLOCK) ORDER BY shop_voucher.year, shop_voucher.number
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY shop_voucher.year, shop_voucher.number
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK) ORDER BY shop_voucher.year, shop_voucher.number
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, NOWAIT) ORDER BY shop_voucher.year, shop_voucher.number
OFFSET ? ROWS
FETCH FIRST ? ROWS ONLY;

-- schema and quoted names -------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group]
WHERE books.[Journal of Group].[order] > ?;

-- NoLock
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (NOLOCK)
WHERE books.[Journal of Group].[order] > ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE books.[Journal of Group].[order] > ?;

-- ForUpdate
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK)
WHERE books.[Journal of Group].[order] > ?;

-- ForUpdate|NoWait
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK, NOWAIT)
WHERE books.[Journal of Group].[order] > ?;

-- schema and quoted names, aliased ----------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT j.[Key], j.[order], j.[Name]
FROM books.[Journal of Group] AS j
WHERE j.[order] > ?;

-- NoLock
SELECT j.[Key], j.[order], j.[Name]
FROM books.[Journal of Group] AS j WITH (NOLOCK)
WHERE j.[order] > ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT j.[Key], j.[order], j.[Name]
FROM books.[Journal of Group] AS j WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE j.[order] > ?;

-- ForUpdate
SELECT j.[Key], j.[order], j.[Name]
FROM books.[Journal of Group] AS j WITH (UPDLOCK, ROWLOCK)
WHERE j.[order] > ?;

-- ForUpdate|NoWait
SELECT j.[Key], j.[order], j.[Name]
FROM books.[Journal of Group] AS j WITH (UPDLOCK, ROWLOCK, NOWAIT)
WHERE j.[order] > ?;

-- schema and quoted names, limit ------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT TOP 10 books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] ORDER BY books.[Journal of Group].[order];

-- NoLock
SELECT TOP 10 books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (NOLOCK) ORDER BY books.[Journal of Group].[order];

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT TOP 10 books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY books.[Journal of Group].[order];

-- ForUpdate
SELECT TOP 10 books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK) ORDER BY books.[Journal of Group].[order];

-- ForUpdate|NoWait
SELECT TOP 10 books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK, NOWAIT) ORDER BY books.[Journal of Group].[order];

-- joined inheritance ------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id;

-- NoLock
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract WITH (NOLOCK) JOIN shop_lease WITH (NOLOCK) ON shop_contract.id = shop_lease.id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) JOIN shop_lease ON shop_contract.id = shop_lease.id;

-- ForUpdate
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract WITH (UPDLOCK, ROWLOCK) JOIN shop_lease ON shop_contract.id = shop_lease.id;

-- ForUpdate|NoWait
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract WITH (UPDLOCK, ROWLOCK, NOWAIT) JOIN shop_lease ON shop_contract.id = shop_lease.id;

-- joined inheritance, limit -----------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT TOP 10 shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id;

-- NoLock
SELECT TOP 10 shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract WITH (NOLOCK) JOIN shop_lease WITH (NOLOCK) ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT TOP 10 shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id;

-- ForUpdate
SELECT TOP 10 shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract WITH (UPDLOCK, ROWLOCK) JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id;

-- ForUpdate|NoWait
SELECT TOP 10 shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract WITH (UPDLOCK, ROWLOCK, NOWAIT) JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id;

-- joined inheritance, its root --------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract;

-- NoLock
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract WITH (NOLOCK);

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK);

-- ForUpdate
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract WITH (UPDLOCK, ROWLOCK);

-- ForUpdate|NoWait
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract WITH (UPDLOCK, ROWLOCK, NOWAIT);

-- joined inheritance, aliased flat ----------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > ?;

-- NoLock
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract WITH (NOLOCK) JOIN shop_lease AS rented_shop_lease WITH (NOLOCK) ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > ?;

-- ForUpdate
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract WITH (UPDLOCK, ROWLOCK) JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > ?;

-- ForUpdate|NoWait
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract WITH (UPDLOCK, ROWLOCK, NOWAIT) JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > ?;

-- joined inheritance, with_polymorphic ------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id;

-- NoLock
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project WITH (NOLOCK) LEFT OUTER JOIN shop_building WITH (NOLOCK) ON shop_project.id = shop_building.id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id;

-- ForUpdate
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project WITH (UPDLOCK, ROWLOCK) LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id;

-- ForUpdate|NoWait
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project WITH (UPDLOCK, ROWLOCK, NOWAIT) LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id;

-- joined inheritance, with_polymorphic, a subclass ------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project JOIN shop_building ON shop_project.id = shop_building.id;

-- NoLock
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project WITH (NOLOCK) JOIN shop_building WITH (NOLOCK) ON shop_project.id = shop_building.id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) JOIN shop_building ON shop_project.id = shop_building.id;

-- ForUpdate
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project WITH (UPDLOCK, ROWLOCK) JOIN shop_building ON shop_project.id = shop_building.id;

-- ForUpdate|NoWait
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project WITH (UPDLOCK, ROWLOCK, NOWAIT) JOIN shop_building ON shop_project.id = shop_building.id;

-- single-table inheritance ------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (?);

-- NoLock
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (NOLOCK)
WHERE shop_ticket.kind IN (?);

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE shop_ticket.kind IN (?);

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (UPDLOCK, ROWLOCK)
WHERE shop_ticket.kind IN (?);

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (UPDLOCK, ROWLOCK, NOWAIT)
WHERE shop_ticket.kind IN (?);

-- single-table inheritance, its root --------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket;

-- NoLock
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket WITH (NOLOCK);

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK);

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket WITH (UPDLOCK, ROWLOCK);

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket WITH (UPDLOCK, ROWLOCK, NOWAIT);

-- concrete inheritance ----------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store;

-- NoLock
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store WITH (NOLOCK);

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK);

-- ForUpdate
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store WITH (UPDLOCK, ROWLOCK);

-- ForUpdate|NoWait
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store WITH (UPDLOCK, ROWLOCK, NOWAIT);

-- mapped lazy='joined' ----------------------------------------------------------------------------
-- None_
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total, shop_customer_1.id AS id_1, shop_customer_1.name
FROM shop_invoice JOIN shop_customer AS shop_customer_1 ON shop_customer_1.id = shop_invoice.customer_id;

-- NoLock
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total, shop_customer_1.id AS id_1, shop_customer_1.name
FROM shop_invoice WITH (NOLOCK) JOIN shop_customer AS shop_customer_1 ON shop_customer_1.id = shop_invoice.customer_id;

-- SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK);

-- ForUpdate
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (UPDLOCK, ROWLOCK);

-- ForUpdate|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (UPDLOCK, ROWLOCK, NOWAIT);

-- by key, plain -----------------------------------------------------------------------------------
-- SharedRead, SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_order.id = ?;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_order.id = ?;

-- by key, composite -------------------------------------------------------------------------------
-- SharedRead, SharedRead|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = ? AND shop_voucher.number = ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_voucher.year = ? AND shop_voucher.number = ?;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_voucher.year = ? AND shop_voucher.number = ?;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_voucher.year = ? AND shop_voucher.number = ?;

-- by key, schema and quoted names -----------------------------------------------------------------
-- SharedRead, SharedRead|NoWait
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group]
WHERE books.[Journal of Group].[Key] = ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE books.[Journal of Group].[Key] = ?;

-- ForUpdate
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE books.[Journal of Group].[Key] = ?;

-- ForUpdate|NoWait
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE books.[Journal of Group].[Key] = ?;

-- by key, joined inheritance: the root's row ------------------------------------------------------
-- SharedRead, SharedRead|NoWait
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_contract.id
FROM shop_contract WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_contract.id = ?;

-- ForUpdate
SELECT shop_contract.id
FROM shop_contract WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_contract.id = ?;

-- ForUpdate|NoWait
SELECT shop_contract.id
FROM shop_contract WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_contract.id = ?;

-- by key, joined inheritance, with_polymorphic: the root's row ------------------------------------
-- SharedRead, SharedRead|NoWait
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_project.id
FROM shop_project WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_project.id = ?;

-- ForUpdate
SELECT shop_project.id
FROM shop_project WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_project.id = ?;

-- ForUpdate|NoWait
SELECT shop_project.id
FROM shop_project WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_project.id = ?;

-- by key, single-table inheritance ----------------------------------------------------------------
-- SharedRead, SharedRead|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = ? AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]);

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_ticket.id = ? AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]);

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_ticket.id = ? AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]);

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_ticket.id = ? AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]);

-- by key, concrete inheritance --------------------------------------------------------------------
-- SharedRead, SharedRead|NoWait
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_cold_store.id = ?;

-- ForUpdate
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_cold_store.id = ?;

-- ForUpdate|NoWait
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_cold_store.id = ?;

-- by key, mapped lazy='joined' --------------------------------------------------------------------
-- SharedRead, SharedRead|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = ?;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_invoice.id = ?;

-- ForUpdate
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_invoice.id = ?;

-- ForUpdate|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_invoice.id = ?;

-- by keys, plain ----------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (?, ?, ?) ORDER BY shop_order.id;

-- NoLock
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK)
WHERE shop_order.id IN (?, ?, ?) ORDER BY shop_order.id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_order.id IN (?, ?, ?) ORDER BY shop_order.id;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id IN (?, ?, ?) ORDER BY shop_order.id;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_order.id IN (?, ?, ?) ORDER BY shop_order.id;

-- by keys, composite ------------------------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = ? AND shop_voucher.number = ? OR shop_voucher.year = ? AND shop_voucher.number = ? ORDER BY shop_voucher.year, shop_voucher.number;

-- NoLock
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (NOLOCK)
WHERE shop_voucher.year = ? AND shop_voucher.number = ? OR shop_voucher.year = ? AND shop_voucher.number = ? ORDER BY shop_voucher.year, shop_voucher.number;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_voucher.year = ? AND shop_voucher.number = ? OR shop_voucher.year = ? AND shop_voucher.number = ? ORDER BY shop_voucher.year, shop_voucher.number;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_voucher.year = ? AND shop_voucher.number = ? OR shop_voucher.year = ? AND shop_voucher.number = ? ORDER BY shop_voucher.year, shop_voucher.number;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_voucher.year = ? AND shop_voucher.number = ? OR shop_voucher.year = ? AND shop_voucher.number = ? ORDER BY shop_voucher.year, shop_voucher.number;

-- by keys, schema and quoted names ----------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group]
WHERE books.[Journal of Group].[Key] IN (?, ?) ORDER BY books.[Journal of Group].[Key];

-- NoLock
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (NOLOCK)
WHERE books.[Journal of Group].[Key] IN (?, ?) ORDER BY books.[Journal of Group].[Key];

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE books.[Journal of Group].[Key] IN (?, ?) ORDER BY books.[Journal of Group].[Key];

-- ForUpdate
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE books.[Journal of Group].[Key] IN (?, ?) ORDER BY books.[Journal of Group].[Key];

-- ForUpdate|NoWait
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE books.[Journal of Group].[Key] IN (?, ?) ORDER BY books.[Journal of Group].[Key];

-- by keys, joined inheritance: the root's rows ----------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (?, ?) ORDER BY shop_contract.id;

-- NoLock
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract WITH (NOLOCK)
WHERE shop_contract.id IN (?, ?) ORDER BY shop_contract.id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_contract.id IN (?, ?) ORDER BY shop_contract.id;

-- ForUpdate
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_contract.id IN (?, ?) ORDER BY shop_contract.id;

-- ForUpdate|NoWait
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_contract.id IN (?, ?) ORDER BY shop_contract.id;

-- by keys, single-table inheritance ---------------------------------------------------------------
-- None_, SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id IN (?, ?) AND shop_ticket.kind IN (?) ORDER BY shop_ticket.id;

-- NoLock
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (NOLOCK)
WHERE shop_ticket.id IN (?, ?) AND shop_ticket.kind IN (?) ORDER BY shop_ticket.id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_ticket.id IN (?, ?) AND shop_ticket.kind IN (?) ORDER BY shop_ticket.id;

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_ticket.id IN (?, ?) AND shop_ticket.kind IN (?) ORDER BY shop_ticket.id;

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_ticket.id IN (?, ?) AND shop_ticket.kind IN (?) ORDER BY shop_ticket.id;

-- by keys, mapped lazy='joined' -------------------------------------------------------------------
-- None_
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total, shop_customer_1.id AS id_1, shop_customer_1.name
FROM shop_invoice JOIN shop_customer AS shop_customer_1 ON shop_customer_1.id = shop_invoice.customer_id
WHERE shop_invoice.id IN (?, ?) ORDER BY shop_invoice.id;

-- NoLock
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (NOLOCK)
WHERE shop_invoice.id IN (?, ?) ORDER BY shop_invoice.id;

-- SharedRead, SharedRead|NoWait, SnapshotRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id IN (?, ?) ORDER BY shop_invoice.id;

-- SharedRead|SkipLocked, ForUpdate|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_invoice.id IN (?, ?) ORDER BY shop_invoice.id;

-- ForUpdate
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_invoice.id IN (?, ?) ORDER BY shop_invoice.id;

-- ForUpdate|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_invoice.id IN (?, ?) ORDER BY shop_invoice.id;

-- parts, one level --------------------------------------------------------------------------------
-- None_
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = ? ORDER BY shop_box.id;

-- NoLock
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box WITH (NOLOCK)
WHERE shop_box.delivery_id = ? ORDER BY shop_box.id;

-- parts, one level, of several --------------------------------------------------------------------
-- None_
SELECT shop_box.id, shop_box.delivery_id, shop_box.delivery_id AS delivery_id__1
FROM shop_box
WHERE shop_box.delivery_id IN (?, ?) ORDER BY shop_box.id;

-- NoLock
SELECT shop_box.id, shop_box.delivery_id, shop_box.delivery_id AS delivery_id__1
FROM shop_box WITH (NOLOCK)
WHERE shop_box.delivery_id IN (?, ?) ORDER BY shop_box.id;

-- parts, two levels -------------------------------------------------------------------------------
-- None_
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = ? ORDER BY shop_item.id;

-- NoLock
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box WITH (NOLOCK) JOIN shop_item WITH (NOLOCK) ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = ? ORDER BY shop_item.id;

-- parts, two levels, of several -------------------------------------------------------------------
-- None_
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id IN (?, ?) ORDER BY shop_item.id;

-- NoLock
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box WITH (NOLOCK) JOIN shop_item WITH (NOLOCK) ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id IN (?, ?) ORDER BY shop_item.id;

-- parts, many-to-many -----------------------------------------------------------------------------
-- None_
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = ? ORDER BY shop_label.id;

-- NoLock
SELECT shop_label.id
FROM shop_label WITH (NOLOCK) JOIN shop_delivery_label WITH (NOLOCK) ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = ? ORDER BY shop_label.id;

-- parts, many-to-many, of several -----------------------------------------------------------------
-- None_
SELECT shop_label.id, shop_delivery_label.delivery_id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id IN (?, ?) ORDER BY shop_label.id;

-- NoLock
SELECT shop_label.id, shop_delivery_label.delivery_id
FROM shop_label WITH (NOLOCK) JOIN shop_delivery_label WITH (NOLOCK) ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id IN (?, ?) ORDER BY shop_label.id;

-- parts, composite key ----------------------------------------------------------------------------
-- None_
SELECT shop_voucher_entry.id, shop_voucher_entry.year, shop_voucher_entry.number
FROM shop_voucher_entry
WHERE shop_voucher_entry.year = ? AND shop_voucher_entry.number = ?;

-- NoLock
SELECT shop_voucher_entry.id, shop_voucher_entry.year, shop_voucher_entry.number
FROM shop_voucher_entry WITH (NOLOCK)
WHERE shop_voucher_entry.year = ? AND shop_voucher_entry.number = ?;

-- parts, composite key, of several ----------------------------------------------------------------
-- None_
SELECT shop_voucher_entry.id, shop_voucher_entry.year, shop_voucher_entry.number, shop_voucher_entry.year AS year__1, shop_voucher_entry.number AS number__1
FROM shop_voucher_entry
WHERE shop_voucher_entry.year = ? AND shop_voucher_entry.number = ? OR shop_voucher_entry.year = ? AND shop_voucher_entry.number = ?;

-- NoLock
SELECT shop_voucher_entry.id, shop_voucher_entry.year, shop_voucher_entry.number, shop_voucher_entry.year AS year__1, shop_voucher_entry.number AS number__1
FROM shop_voucher_entry WITH (NOLOCK)
WHERE shop_voucher_entry.year = ? AND shop_voucher_entry.number = ? OR shop_voucher_entry.year = ? AND shop_voucher_entry.number = ?;

-- claims, keys ------------------------------------------------------------------------------------
-- None_
SELECT TOP 10 shop_order.id
FROM shop_order
WHERE shop_order.total > ? ORDER BY shop_order.total, shop_order.id;

-- claims, keys after the first page ---------------------------------------------------------------
-- None_
SELECT TOP 10 shop_order.id
FROM shop_order
WHERE shop_order.total > ? AND shop_order.id > ? ORDER BY shop_order.id;

-- claims, keys after the first page, composite ----------------------------------------------------
-- None_
SELECT TOP 10 shop_voucher.year, shop_voucher.number
FROM shop_voucher
WHERE shop_voucher.year > ? OR shop_voucher.year = ? AND shop_voucher.number > ? ORDER BY shop_voucher.year, shop_voucher.number;

-- claims, keys of what still matches --------------------------------------------------------------
-- None_
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > ? AND shop_order.id IN (?, ?);

-- claims, a row again -----------------------------------------------------------------------------
-- None_
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.rent > ? AND shop_lease.id = ?;

-- claims, one -------------------------------------------------------------------------------------
-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.total > ? AND shop_order.id = ?;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_order.total > ? AND shop_order.id = ?;

-- claims, of several ------------------------------------------------------------------------------
-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.total > ? AND shop_order.id IN (?, ?) ORDER BY shop_order.id;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_order.total > ? AND shop_order.id IN (?, ?) ORDER BY shop_order.id;

-- claims, composite, of several -------------------------------------------------------------------
-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_voucher.year = ? AND shop_voucher.number = ? OR shop_voucher.year = ? AND shop_voucher.number = ? ORDER BY shop_voucher.year, shop_voucher.number;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_voucher.year = ? AND shop_voucher.number = ? OR shop_voucher.year = ? AND shop_voucher.number = ? ORDER BY shop_voucher.year, shop_voucher.number;

-- claims, joined inheritance, of several ----------------------------------------------------------
-- ForUpdate
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract WITH (UPDLOCK, ROWLOCK, FORCESEEK) JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.rent > ? AND shop_lease.id IN (?, ?) ORDER BY shop_lease.id;

-- ForUpdate|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK) JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.rent > ? AND shop_lease.id IN (?, ?) ORDER BY shop_lease.id;
