-- postgresql: what each kind of select is compiled to.  Above each text stand the locks that have it; on
-- SQL Server and SQLite, a lock that has the text of None_ is in the transaction, not in the text.

-- plain -------------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FOR UPDATE OF shop_order SKIP LOCKED;

-- filtered, in order ------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER ORDER BY shop_order.id;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER ORDER BY shop_order.id FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER ORDER BY shop_order.id FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER ORDER BY shop_order.id FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER ORDER BY shop_order.id FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER ORDER BY shop_order.id FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER ORDER BY shop_order.id FOR UPDATE OF shop_order SKIP LOCKED;

-- limit -------------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF shop_order SKIP LOCKED;

-- limit and offset --------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR UPDATE OF shop_order SKIP LOCKED;

-- offset ------------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT ALL OFFSET %(param_1)s::INTEGER;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT ALL OFFSET %(param_1)s::INTEGER FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT ALL OFFSET %(param_1)s::INTEGER FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT ALL OFFSET %(param_1)s::INTEGER FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT ALL OFFSET %(param_1)s::INTEGER FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT ALL OFFSET %(param_1)s::INTEGER FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT ALL OFFSET %(param_1)s::INTEGER FOR UPDATE OF shop_order SKIP LOCKED;

-- aliased -----------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %(total_1)s::INTEGER;

-- SharedRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %(total_1)s::INTEGER FOR SHARE OF o;

-- SharedRead|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %(total_1)s::INTEGER FOR SHARE OF o NOWAIT;

-- SharedRead|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %(total_1)s::INTEGER FOR SHARE OF o SKIP LOCKED;

-- ForUpdate
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %(total_1)s::INTEGER FOR UPDATE OF o;

-- ForUpdate|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %(total_1)s::INTEGER FOR UPDATE OF o NOWAIT;

-- ForUpdate|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %(total_1)s::INTEGER FOR UPDATE OF o SKIP LOCKED;

-- aliased, limit ----------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER;

-- SharedRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER FOR SHARE OF o;

-- SharedRead|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER FOR SHARE OF o NOWAIT;

-- SharedRead|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER FOR SHARE OF o SKIP LOCKED;

-- ForUpdate
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF o;

-- ForUpdate|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF o NOWAIT;

-- ForUpdate|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF o SKIP LOCKED;

-- aliased, limit and offset -----------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER;

-- SharedRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR SHARE OF o;

-- SharedRead|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR SHARE OF o NOWAIT;

-- SharedRead|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR SHARE OF o SKIP LOCKED;

-- ForUpdate
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR UPDATE OF o;

-- ForUpdate|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR UPDATE OF o NOWAIT;

-- ForUpdate|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR UPDATE OF o SKIP LOCKED;

-- join --------------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %(value_1)s::INTEGER;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %(value_1)s::INTEGER FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %(value_1)s::INTEGER FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %(value_1)s::INTEGER FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %(value_1)s::INTEGER FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %(value_1)s::INTEGER FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %(value_1)s::INTEGER FOR UPDATE OF shop_order SKIP LOCKED;

-- join with an alias of itself --------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_order AS other ON shop_order.total < other.total;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_order AS other ON shop_order.total < other.total FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_order AS other ON shop_order.total < other.total FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_order AS other ON shop_order.total < other.total FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_order AS other ON shop_order.total < other.total FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_order AS other ON shop_order.total < other.total FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_order AS other ON shop_order.total < other.total FOR UPDATE OF shop_order SKIP LOCKED;

-- outer join --------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL FOR UPDATE OF shop_order SKIP LOCKED;

-- EXISTS ------------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %(value_1)s::INTEGER);

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %(value_1)s::INTEGER) FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %(value_1)s::INTEGER) FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %(value_1)s::INTEGER) FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %(value_1)s::INTEGER) FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %(value_1)s::INTEGER) FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %(value_1)s::INTEGER) FOR UPDATE OF shop_order SKIP LOCKED;

-- IN a subquery -----------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line);

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line) FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line) FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line) FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line) FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line) FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line) FOR UPDATE OF shop_order SKIP LOCKED;

-- subquery of its own table -----------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other);

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other) FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other) FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other) FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other) FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other) FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other) FOR UPDATE OF shop_order SKIP LOCKED;

-- two entities, the first -------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE OF shop_order SKIP LOCKED;

-- two entities, the second ------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR SHARE OF shop_customer;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR SHARE OF shop_customer NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR SHARE OF shop_customer SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE OF shop_customer;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE OF shop_customer NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE OF shop_customer SKIP LOCKED;

-- composite key -----------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher;

-- SharedRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FOR SHARE OF shop_voucher;

-- SharedRead|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FOR SHARE OF shop_voucher NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FOR SHARE OF shop_voucher SKIP LOCKED;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FOR UPDATE OF shop_voucher;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FOR UPDATE OF shop_voucher NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FOR UPDATE OF shop_voucher SKIP LOCKED;

-- composite key, join -----------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %(id_1)s::INTEGER;

-- SharedRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %(id_1)s::INTEGER FOR SHARE OF shop_voucher;

-- SharedRead|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %(id_1)s::INTEGER FOR SHARE OF shop_voucher NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %(id_1)s::INTEGER FOR SHARE OF shop_voucher SKIP LOCKED;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %(id_1)s::INTEGER FOR UPDATE OF shop_voucher;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %(id_1)s::INTEGER FOR UPDATE OF shop_voucher NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %(id_1)s::INTEGER FOR UPDATE OF shop_voucher SKIP LOCKED;

-- composite key, limit and offset -----------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER;

-- SharedRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR SHARE OF shop_voucher;

-- SharedRead|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR SHARE OF shop_voucher NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR SHARE OF shop_voucher SKIP LOCKED;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR UPDATE OF shop_voucher;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR UPDATE OF shop_voucher NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER FOR UPDATE OF shop_voucher SKIP LOCKED;

-- schema and quoted names -------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."order" > %(order_1)s::INTEGER;

-- SharedRead
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."order" > %(order_1)s::INTEGER FOR SHARE OF "Journal of Group";

-- SharedRead|NoWait
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."order" > %(order_1)s::INTEGER FOR SHARE OF "Journal of Group" NOWAIT;

-- SharedRead|SkipLocked
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."order" > %(order_1)s::INTEGER FOR SHARE OF "Journal of Group" SKIP LOCKED;

-- ForUpdate
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."order" > %(order_1)s::INTEGER FOR UPDATE OF "Journal of Group";

-- ForUpdate|NoWait
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."order" > %(order_1)s::INTEGER FOR UPDATE OF "Journal of Group" NOWAIT;

-- ForUpdate|SkipLocked
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."order" > %(order_1)s::INTEGER FOR UPDATE OF "Journal of Group" SKIP LOCKED;

-- schema and quoted names, aliased ----------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT j."Key", j."order", j."Name"
FROM books."Journal of Group" AS j
WHERE j."order" > %(order_1)s::INTEGER;

-- SharedRead
SELECT j."Key", j."order", j."Name"
FROM books."Journal of Group" AS j
WHERE j."order" > %(order_1)s::INTEGER FOR SHARE OF j;

-- SharedRead|NoWait
SELECT j."Key", j."order", j."Name"
FROM books."Journal of Group" AS j
WHERE j."order" > %(order_1)s::INTEGER FOR SHARE OF j NOWAIT;

-- SharedRead|SkipLocked
SELECT j."Key", j."order", j."Name"
FROM books."Journal of Group" AS j
WHERE j."order" > %(order_1)s::INTEGER FOR SHARE OF j SKIP LOCKED;

-- ForUpdate
SELECT j."Key", j."order", j."Name"
FROM books."Journal of Group" AS j
WHERE j."order" > %(order_1)s::INTEGER FOR UPDATE OF j;

-- ForUpdate|NoWait
SELECT j."Key", j."order", j."Name"
FROM books."Journal of Group" AS j
WHERE j."order" > %(order_1)s::INTEGER FOR UPDATE OF j NOWAIT;

-- ForUpdate|SkipLocked
SELECT j."Key", j."order", j."Name"
FROM books."Journal of Group" AS j
WHERE j."order" > %(order_1)s::INTEGER FOR UPDATE OF j SKIP LOCKED;

-- schema and quoted names, limit ------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group" ORDER BY books."Journal of Group"."order"
LIMIT %(param_1)s::INTEGER;

-- SharedRead
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group" ORDER BY books."Journal of Group"."order"
LIMIT %(param_1)s::INTEGER FOR SHARE OF "Journal of Group";

-- SharedRead|NoWait
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group" ORDER BY books."Journal of Group"."order"
LIMIT %(param_1)s::INTEGER FOR SHARE OF "Journal of Group" NOWAIT;

-- SharedRead|SkipLocked
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group" ORDER BY books."Journal of Group"."order"
LIMIT %(param_1)s::INTEGER FOR SHARE OF "Journal of Group" SKIP LOCKED;

-- ForUpdate
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group" ORDER BY books."Journal of Group"."order"
LIMIT %(param_1)s::INTEGER FOR UPDATE OF "Journal of Group";

-- ForUpdate|NoWait
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group" ORDER BY books."Journal of Group"."order"
LIMIT %(param_1)s::INTEGER FOR UPDATE OF "Journal of Group" NOWAIT;

-- ForUpdate|SkipLocked
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group" ORDER BY books."Journal of Group"."order"
LIMIT %(param_1)s::INTEGER FOR UPDATE OF "Journal of Group" SKIP LOCKED;

-- joined inheritance ------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id;

-- SharedRead
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id FOR SHARE OF shop_contract;

-- SharedRead|NoWait
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id FOR SHARE OF shop_contract NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id FOR SHARE OF shop_contract SKIP LOCKED;

-- ForUpdate
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id FOR UPDATE OF shop_contract;

-- ForUpdate|NoWait
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id FOR UPDATE OF shop_contract NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id FOR UPDATE OF shop_contract SKIP LOCKED;

-- joined inheritance, limit -----------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %(param_1)s::INTEGER;

-- SharedRead
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %(param_1)s::INTEGER FOR SHARE OF shop_contract;

-- SharedRead|NoWait
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %(param_1)s::INTEGER FOR SHARE OF shop_contract NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %(param_1)s::INTEGER FOR SHARE OF shop_contract SKIP LOCKED;

-- ForUpdate
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF shop_contract;

-- ForUpdate|NoWait
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF shop_contract NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF shop_contract SKIP LOCKED;

-- joined inheritance, its root --------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract;

-- SharedRead
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract FOR SHARE OF shop_contract;

-- SharedRead|NoWait
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract FOR SHARE OF shop_contract NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract FOR SHARE OF shop_contract SKIP LOCKED;

-- ForUpdate
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract FOR UPDATE OF shop_contract;

-- ForUpdate|NoWait
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract FOR UPDATE OF shop_contract NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract FOR UPDATE OF shop_contract SKIP LOCKED;

-- joined inheritance, aliased flat ----------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %(rent_1)s::INTEGER;

-- SharedRead
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %(rent_1)s::INTEGER FOR SHARE OF rented_shop_contract;

-- SharedRead|NoWait
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %(rent_1)s::INTEGER FOR SHARE OF rented_shop_contract NOWAIT;

-- SharedRead|SkipLocked
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %(rent_1)s::INTEGER FOR SHARE OF rented_shop_contract SKIP LOCKED;

-- ForUpdate
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %(rent_1)s::INTEGER FOR UPDATE OF rented_shop_contract;

-- ForUpdate|NoWait
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %(rent_1)s::INTEGER FOR UPDATE OF rented_shop_contract NOWAIT;

-- ForUpdate|SkipLocked
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %(rent_1)s::INTEGER FOR UPDATE OF rented_shop_contract SKIP LOCKED;

-- joined inheritance, with_polymorphic ------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id;

-- SharedRead
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id FOR SHARE OF shop_project;

-- SharedRead|NoWait
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id FOR SHARE OF shop_project NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id FOR SHARE OF shop_project SKIP LOCKED;

-- ForUpdate
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE OF shop_project;

-- ForUpdate|NoWait
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE OF shop_project NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE OF shop_project SKIP LOCKED;

-- joined inheritance, with_polymorphic, a subclass ------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project JOIN shop_building ON shop_project.id = shop_building.id;

-- SharedRead
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project JOIN shop_building ON shop_project.id = shop_building.id FOR SHARE OF shop_project;

-- SharedRead|NoWait
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project JOIN shop_building ON shop_project.id = shop_building.id FOR SHARE OF shop_project NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project JOIN shop_building ON shop_project.id = shop_building.id FOR SHARE OF shop_project SKIP LOCKED;

-- ForUpdate
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE OF shop_project;

-- ForUpdate|NoWait
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE OF shop_project NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE OF shop_project SKIP LOCKED;

-- single-table inheritance ------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%(kind_1_1)s::VARCHAR);

-- SharedRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) FOR SHARE OF shop_ticket;

-- SharedRead|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) FOR SHARE OF shop_ticket NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) FOR SHARE OF shop_ticket SKIP LOCKED;

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) FOR UPDATE OF shop_ticket;

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) FOR UPDATE OF shop_ticket NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) FOR UPDATE OF shop_ticket SKIP LOCKED;

-- single-table inheritance, its root --------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket;

-- SharedRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket FOR SHARE OF shop_ticket;

-- SharedRead|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket FOR SHARE OF shop_ticket NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket FOR SHARE OF shop_ticket SKIP LOCKED;

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket FOR UPDATE OF shop_ticket;

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket FOR UPDATE OF shop_ticket NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket FOR UPDATE OF shop_ticket SKIP LOCKED;

-- concrete inheritance ----------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store;

-- SharedRead
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store FOR SHARE OF shop_cold_store;

-- SharedRead|NoWait
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store FOR SHARE OF shop_cold_store NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store FOR SHARE OF shop_cold_store SKIP LOCKED;

-- ForUpdate
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store FOR UPDATE OF shop_cold_store;

-- ForUpdate|NoWait
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store FOR UPDATE OF shop_cold_store NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store FOR UPDATE OF shop_cold_store SKIP LOCKED;

-- mapped lazy='joined' ----------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total, shop_customer_1.id AS id_1, shop_customer_1.name
FROM shop_invoice JOIN shop_customer AS shop_customer_1 ON shop_customer_1.id = shop_invoice.customer_id;

-- SharedRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FOR SHARE OF shop_invoice;

-- SharedRead|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FOR SHARE OF shop_invoice NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FOR SHARE OF shop_invoice SKIP LOCKED;

-- ForUpdate
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FOR UPDATE OF shop_invoice;

-- ForUpdate|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FOR UPDATE OF shop_invoice NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FOR UPDATE OF shop_invoice SKIP LOCKED;

-- SnapshotRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice;

-- by key, plain -----------------------------------------------------------------------------------
-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order SKIP LOCKED;

-- by key, composite -------------------------------------------------------------------------------
-- SharedRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(pk_0)s::INTEGER AND shop_voucher.number = %(pk_1)s::INTEGER FOR SHARE OF shop_voucher;

-- SharedRead|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(pk_0)s::INTEGER AND shop_voucher.number = %(pk_1)s::INTEGER FOR SHARE OF shop_voucher NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(pk_0)s::INTEGER AND shop_voucher.number = %(pk_1)s::INTEGER FOR SHARE OF shop_voucher SKIP LOCKED;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(pk_0)s::INTEGER AND shop_voucher.number = %(pk_1)s::INTEGER FOR UPDATE OF shop_voucher;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(pk_0)s::INTEGER AND shop_voucher.number = %(pk_1)s::INTEGER FOR UPDATE OF shop_voucher NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(pk_0)s::INTEGER AND shop_voucher.number = %(pk_1)s::INTEGER FOR UPDATE OF shop_voucher SKIP LOCKED;

-- by key, schema and quoted names -----------------------------------------------------------------
-- SharedRead
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" = %(pk_0)s::INTEGER FOR SHARE OF "Journal of Group";

-- SharedRead|NoWait
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" = %(pk_0)s::INTEGER FOR SHARE OF "Journal of Group" NOWAIT;

-- SharedRead|SkipLocked
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" = %(pk_0)s::INTEGER FOR SHARE OF "Journal of Group" SKIP LOCKED;

-- ForUpdate
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" = %(pk_0)s::INTEGER FOR UPDATE OF "Journal of Group";

-- ForUpdate|NoWait
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" = %(pk_0)s::INTEGER FOR UPDATE OF "Journal of Group" NOWAIT;

-- ForUpdate|SkipLocked
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" = %(pk_0)s::INTEGER FOR UPDATE OF "Journal of Group" SKIP LOCKED;

-- by key, joined inheritance: the root's row ------------------------------------------------------
-- SharedRead
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %(pk_0)s::INTEGER FOR SHARE OF shop_contract;

-- SharedRead|NoWait
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %(pk_0)s::INTEGER FOR SHARE OF shop_contract NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %(pk_0)s::INTEGER FOR SHARE OF shop_contract SKIP LOCKED;

-- ForUpdate
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_contract;

-- ForUpdate|NoWait
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_contract NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_contract SKIP LOCKED;

-- by key, joined inheritance, with_polymorphic: the root's row ------------------------------------
-- SharedRead
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %(pk_0)s::INTEGER FOR SHARE OF shop_project;

-- SharedRead|NoWait
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %(pk_0)s::INTEGER FOR SHARE OF shop_project NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %(pk_0)s::INTEGER FOR SHARE OF shop_project SKIP LOCKED;

-- ForUpdate
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_project;

-- ForUpdate|NoWait
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_project NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_project SKIP LOCKED;

-- by key, single-table inheritance ----------------------------------------------------------------
-- SharedRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %(pk_0)s::INTEGER AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) FOR SHARE OF shop_ticket;

-- SharedRead|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %(pk_0)s::INTEGER AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) FOR SHARE OF shop_ticket NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %(pk_0)s::INTEGER AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) FOR SHARE OF shop_ticket SKIP LOCKED;

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %(pk_0)s::INTEGER AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) FOR UPDATE OF shop_ticket;

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %(pk_0)s::INTEGER AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) FOR UPDATE OF shop_ticket NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %(pk_0)s::INTEGER AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) FOR UPDATE OF shop_ticket SKIP LOCKED;

-- by key, concrete inheritance --------------------------------------------------------------------
-- SharedRead
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %(pk_0)s::INTEGER FOR SHARE OF shop_cold_store;

-- SharedRead|NoWait
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %(pk_0)s::INTEGER FOR SHARE OF shop_cold_store NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %(pk_0)s::INTEGER FOR SHARE OF shop_cold_store SKIP LOCKED;

-- ForUpdate
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_cold_store;

-- ForUpdate|NoWait
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_cold_store NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_cold_store SKIP LOCKED;

-- by key, mapped lazy='joined' --------------------------------------------------------------------
-- SharedRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %(pk_0)s::INTEGER FOR SHARE OF shop_invoice;

-- SharedRead|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %(pk_0)s::INTEGER FOR SHARE OF shop_invoice NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %(pk_0)s::INTEGER FOR SHARE OF shop_invoice SKIP LOCKED;

-- ForUpdate
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_invoice;

-- ForUpdate|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_invoice NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_invoice SKIP LOCKED;

-- by keys, plain ----------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER, %(keys_3)s::INTEGER) ORDER BY shop_order.id;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER, %(keys_3)s::INTEGER) ORDER BY shop_order.id FOR SHARE OF shop_order;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER, %(keys_3)s::INTEGER) ORDER BY shop_order.id FOR SHARE OF shop_order NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER, %(keys_3)s::INTEGER) ORDER BY shop_order.id FOR SHARE OF shop_order SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER, %(keys_3)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER, %(keys_3)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER, %(keys_3)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order SKIP LOCKED;

-- by keys, composite ------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number = %(number_2)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number;

-- SharedRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number = %(number_2)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR SHARE OF shop_voucher;

-- SharedRead|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number = %(number_2)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR SHARE OF shop_voucher NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number = %(number_2)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR SHARE OF shop_voucher SKIP LOCKED;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number = %(number_2)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE OF shop_voucher;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number = %(number_2)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE OF shop_voucher NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number = %(number_2)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE OF shop_voucher SKIP LOCKED;

-- by keys, schema and quoted names ----------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY books."Journal of Group"."Key";

-- SharedRead
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY books."Journal of Group"."Key" FOR SHARE OF "Journal of Group";

-- SharedRead|NoWait
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY books."Journal of Group"."Key" FOR SHARE OF "Journal of Group" NOWAIT;

-- SharedRead|SkipLocked
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY books."Journal of Group"."Key" FOR SHARE OF "Journal of Group" SKIP LOCKED;

-- ForUpdate
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY books."Journal of Group"."Key" FOR UPDATE OF "Journal of Group";

-- ForUpdate|NoWait
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY books."Journal of Group"."Key" FOR UPDATE OF "Journal of Group" NOWAIT;

-- ForUpdate|SkipLocked
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY books."Journal of Group"."Key" FOR UPDATE OF "Journal of Group" SKIP LOCKED;

-- by keys, joined inheritance: the root's rows ----------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_contract.id;

-- SharedRead
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_contract.id FOR SHARE OF shop_contract;

-- SharedRead|NoWait
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_contract.id FOR SHARE OF shop_contract NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_contract.id FOR SHARE OF shop_contract SKIP LOCKED;

-- ForUpdate
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_contract.id FOR UPDATE OF shop_contract;

-- ForUpdate|NoWait
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_contract.id FOR UPDATE OF shop_contract NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_contract.id FOR UPDATE OF shop_contract SKIP LOCKED;

-- by keys, single-table inheritance ---------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) AND shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) ORDER BY shop_ticket.id;

-- SharedRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) AND shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) ORDER BY shop_ticket.id FOR SHARE OF shop_ticket;

-- SharedRead|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) AND shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) ORDER BY shop_ticket.id FOR SHARE OF shop_ticket NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) AND shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) ORDER BY shop_ticket.id FOR SHARE OF shop_ticket SKIP LOCKED;

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) AND shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) ORDER BY shop_ticket.id FOR UPDATE OF shop_ticket;

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) AND shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) ORDER BY shop_ticket.id FOR UPDATE OF shop_ticket NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) AND shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) ORDER BY shop_ticket.id FOR UPDATE OF shop_ticket SKIP LOCKED;

-- by keys, mapped lazy='joined' -------------------------------------------------------------------
-- None_
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total, shop_customer_1.id AS id_1, shop_customer_1.name
FROM shop_invoice JOIN shop_customer AS shop_customer_1 ON shop_customer_1.id = shop_invoice.customer_id
WHERE shop_invoice.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_invoice.id;

-- NoLock, SnapshotRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_invoice.id;

-- SharedRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_invoice.id FOR SHARE OF shop_invoice;

-- SharedRead|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_invoice.id FOR SHARE OF shop_invoice NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_invoice.id FOR SHARE OF shop_invoice SKIP LOCKED;

-- ForUpdate
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_invoice.id FOR UPDATE OF shop_invoice;

-- ForUpdate|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_invoice.id FOR UPDATE OF shop_invoice NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_invoice.id FOR UPDATE OF shop_invoice SKIP LOCKED;

-- parts, one level --------------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_box.id;

-- parts, one level, of several --------------------------------------------------------------------
-- None_, NoLock
SELECT shop_box.id, shop_box.delivery_id, shop_box.delivery_id AS delivery_id__1
FROM shop_box
WHERE shop_box.delivery_id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_box.id;

-- parts, two levels -------------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_item.id;

-- parts, two levels, of several -------------------------------------------------------------------
-- None_, NoLock
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_item.id;

-- parts, many-to-many -----------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_label.id;

-- parts, many-to-many, of several -----------------------------------------------------------------
-- None_, NoLock
SELECT shop_label.id, shop_delivery_label.delivery_id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_label.id;

-- parts, composite key ----------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_voucher_entry.id, shop_voucher_entry.year, shop_voucher_entry.number
FROM shop_voucher_entry
WHERE shop_voucher_entry.year = %(pk_0)s::INTEGER AND shop_voucher_entry.number = %(pk_1)s::INTEGER;

-- parts, composite key, of several ----------------------------------------------------------------
-- None_, NoLock
SELECT shop_voucher_entry.id, shop_voucher_entry.year, shop_voucher_entry.number, shop_voucher_entry.year AS year__1, shop_voucher_entry.number AS number__1
FROM shop_voucher_entry
WHERE shop_voucher_entry.year = %(year_1)s::INTEGER AND shop_voucher_entry.number = %(number_1)s::INTEGER OR shop_voucher_entry.year = %(year_2)s::INTEGER AND shop_voucher_entry.number = %(number_2)s::INTEGER;

-- claims, keys ------------------------------------------------------------------------------------
-- None_
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER ORDER BY shop_order.total, shop_order.id
LIMIT %(param_1)s::INTEGER;

-- claims, keys after the first page ---------------------------------------------------------------
-- None_
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER AND shop_order.id > %(id_1)s::INTEGER ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER;

-- claims, keys after the first page, composite ----------------------------------------------------
-- None_
SELECT shop_voucher.year, shop_voucher.number
FROM shop_voucher
WHERE shop_voucher.year > %(year_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number > %(number_1)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %(param_1)s::INTEGER;

-- claims, keys of what still matches --------------------------------------------------------------
-- None_
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER AND shop_order.id IN (%(id_1_1)s::INTEGER, %(id_1_2)s::INTEGER);

-- claims, a row again -----------------------------------------------------------------------------
-- None_
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.rent > %(rent_1)s::INTEGER AND shop_lease.id = %(doclock_key_0)s::INTEGER;

-- claims, one -------------------------------------------------------------------------------------
-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER AND shop_order.id = %(doclock_key_0)s::INTEGER FOR UPDATE OF shop_order;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER AND shop_order.id = %(doclock_key_0)s::INTEGER FOR UPDATE OF shop_order SKIP LOCKED;

-- claims, of several ------------------------------------------------------------------------------
-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER AND shop_order.id IN (%(doclock_keys_1)s::INTEGER, %(doclock_keys_2)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER AND shop_order.id IN (%(doclock_keys_1)s::INTEGER, %(doclock_keys_2)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order SKIP LOCKED;

-- claims, composite, of several -------------------------------------------------------------------
-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number = %(number_2)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE OF shop_voucher;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number = %(number_2)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE OF shop_voucher SKIP LOCKED;

-- claims, joined inheritance, of several ----------------------------------------------------------
-- ForUpdate
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.rent > %(rent_1)s::INTEGER AND shop_lease.id IN (%(doclock_keys_1)s::INTEGER, %(doclock_keys_2)s::INTEGER) ORDER BY shop_lease.id FOR UPDATE OF shop_contract;

-- ForUpdate|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.rent > %(rent_1)s::INTEGER AND shop_lease.id IN (%(doclock_keys_1)s::INTEGER, %(doclock_keys_2)s::INTEGER) ORDER BY shop_lease.id FOR UPDATE OF shop_contract SKIP LOCKED;
