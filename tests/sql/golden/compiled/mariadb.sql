-- mariadb: what each kind of select is compiled to.  Above each text stand the locks that have it; on
-- SQL Server and SQLite, a lock that has the text of None_ is in the transaction, not in the text.

-- plain -------------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FOR UPDATE SKIP LOCKED;

-- filtered, in order ------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %s ORDER BY shop_order.id;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %s ORDER BY shop_order.id LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %s ORDER BY shop_order.id LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %s ORDER BY shop_order.id LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %s ORDER BY shop_order.id FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %s ORDER BY shop_order.id FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %s ORDER BY shop_order.id FOR UPDATE SKIP LOCKED;

-- limit -------------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s FOR UPDATE SKIP LOCKED;

-- limit and offset --------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, %s;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, %s FOR UPDATE SKIP LOCKED;

-- offset ------------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, 18446744073709551615;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, 18446744073709551615 LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, 18446744073709551615 LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, 18446744073709551615 LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, 18446744073709551615 FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, 18446744073709551615 FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s, 18446744073709551615 FOR UPDATE SKIP LOCKED;

-- aliased -----------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %s;

-- SharedRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > %s FOR UPDATE SKIP LOCKED;

-- aliased, limit ----------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s;

-- SharedRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s FOR UPDATE SKIP LOCKED;

-- aliased, limit and offset -----------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s, %s;

-- SharedRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s, %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s, %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s, %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s, %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s, %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT %s, %s FOR UPDATE SKIP LOCKED;

-- join --------------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %s;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %s FOR UPDATE SKIP LOCKED;

-- join with an alias of itself --------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_order AS other ON shop_order.total < other.total;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_order AS other ON shop_order.total < other.total LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_order AS other ON shop_order.total < other.total LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_order AS other ON shop_order.total < other.total LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_order AS other ON shop_order.total < other.total FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_order AS other ON shop_order.total < other.total FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_order AS other ON shop_order.total < other.total FOR UPDATE SKIP LOCKED;

-- outer join --------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL FOR UPDATE SKIP LOCKED;

-- EXISTS ------------------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %s);

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %s) LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %s) LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %s) LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %s) FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %s) FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > %s) FOR UPDATE SKIP LOCKED;

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
FROM shop_line) LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line) LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line) LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line) FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line) FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line) FOR UPDATE SKIP LOCKED;

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
FROM shop_order AS other) LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other) LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other) LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other) FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other) FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other) FOR UPDATE SKIP LOCKED;

-- two entities, the first -------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE SKIP LOCKED;

-- two entities, the second ------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order INNER JOIN shop_customer ON shop_customer.id = shop_order.customer_id FOR UPDATE SKIP LOCKED;

-- composite key -----------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher;

-- SharedRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FOR UPDATE SKIP LOCKED;

-- composite key, join -----------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher INNER JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %s;

-- SharedRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher INNER JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher INNER JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher INNER JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher INNER JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher INNER JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher INNER JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > %s FOR UPDATE SKIP LOCKED;

-- composite key, limit and offset -----------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %s, %s;

-- SharedRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %s, %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %s, %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %s, %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %s, %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %s, %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %s, %s FOR UPDATE SKIP LOCKED;

-- schema and quoted names -------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`order` > %s;

-- SharedRead
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`order` > %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`order` > %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`order` > %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`order` > %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`order` > %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`order` > %s FOR UPDATE SKIP LOCKED;

-- schema and quoted names, aliased ----------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT j.`Key`, j.`order`, j.`Name`
FROM books.`Journal of Group` AS j
WHERE j.`order` > %s;

-- SharedRead
SELECT j.`Key`, j.`order`, j.`Name`
FROM books.`Journal of Group` AS j
WHERE j.`order` > %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT j.`Key`, j.`order`, j.`Name`
FROM books.`Journal of Group` AS j
WHERE j.`order` > %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT j.`Key`, j.`order`, j.`Name`
FROM books.`Journal of Group` AS j
WHERE j.`order` > %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT j.`Key`, j.`order`, j.`Name`
FROM books.`Journal of Group` AS j
WHERE j.`order` > %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT j.`Key`, j.`order`, j.`Name`
FROM books.`Journal of Group` AS j
WHERE j.`order` > %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT j.`Key`, j.`order`, j.`Name`
FROM books.`Journal of Group` AS j
WHERE j.`order` > %s FOR UPDATE SKIP LOCKED;

-- schema and quoted names, limit ------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` ORDER BY books.`Journal of Group`.`order`
LIMIT %s;

-- SharedRead
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` ORDER BY books.`Journal of Group`.`order`
LIMIT %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` ORDER BY books.`Journal of Group`.`order`
LIMIT %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` ORDER BY books.`Journal of Group`.`order`
LIMIT %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` ORDER BY books.`Journal of Group`.`order`
LIMIT %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` ORDER BY books.`Journal of Group`.`order`
LIMIT %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` ORDER BY books.`Journal of Group`.`order`
LIMIT %s FOR UPDATE SKIP LOCKED;

-- joined inheritance ------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id;

-- SharedRead
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id FOR UPDATE SKIP LOCKED;

-- joined inheritance, limit -----------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %s;

-- SharedRead
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT %s FOR UPDATE SKIP LOCKED;

-- joined inheritance, its root --------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract;

-- SharedRead
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract FOR UPDATE SKIP LOCKED;

-- joined inheritance, aliased flat ----------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract INNER JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %s;

-- SharedRead
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract INNER JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract INNER JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract INNER JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract INNER JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract INNER JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract INNER JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > %s FOR UPDATE SKIP LOCKED;

-- joined inheritance, with_polymorphic ------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id;

-- SharedRead
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE SKIP LOCKED;

-- joined inheritance, with_polymorphic, a subclass ------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project INNER JOIN shop_building ON shop_project.id = shop_building.id;

-- SharedRead
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project INNER JOIN shop_building ON shop_project.id = shop_building.id LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project INNER JOIN shop_building ON shop_project.id = shop_building.id LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project INNER JOIN shop_building ON shop_project.id = shop_building.id LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project INNER JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project INNER JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project INNER JOIN shop_building ON shop_project.id = shop_building.id FOR UPDATE SKIP LOCKED;

-- single-table inheritance ------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%s);

-- SharedRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%s) LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%s) LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%s) LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%s) FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%s) FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (%s) FOR UPDATE SKIP LOCKED;

-- single-table inheritance, its root --------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket;

-- SharedRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket FOR UPDATE SKIP LOCKED;

-- concrete inheritance ----------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store;

-- SharedRead
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store FOR UPDATE SKIP LOCKED;

-- mapped lazy='joined' ----------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total, shop_customer_1.id AS id_1, shop_customer_1.name
FROM shop_invoice INNER JOIN shop_customer AS shop_customer_1 ON shop_customer_1.id = shop_invoice.customer_id;

-- SharedRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FOR UPDATE SKIP LOCKED;

-- SnapshotRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice;

-- by key, plain -----------------------------------------------------------------------------------
-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE SKIP LOCKED;

-- by key, composite -------------------------------------------------------------------------------
-- SharedRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %s AND shop_voucher.number = %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %s AND shop_voucher.number = %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %s AND shop_voucher.number = %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %s AND shop_voucher.number = %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %s AND shop_voucher.number = %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %s AND shop_voucher.number = %s FOR UPDATE SKIP LOCKED;

-- by key, schema and quoted names -----------------------------------------------------------------
-- SharedRead
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`Key` = %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`Key` = %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`Key` = %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`Key` = %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`Key` = %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`Key` = %s FOR UPDATE SKIP LOCKED;

-- by key, joined inheritance: the root's row ------------------------------------------------------
-- SharedRead
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %s FOR UPDATE SKIP LOCKED;

-- by key, joined inheritance, with_polymorphic: the root's row ------------------------------------
-- SharedRead
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = %s FOR UPDATE SKIP LOCKED;

-- by key, single-table inheritance ----------------------------------------------------------------
-- SharedRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %s AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %s AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %s AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %s AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %s AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = %s AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]) FOR UPDATE SKIP LOCKED;

-- by key, concrete inheritance --------------------------------------------------------------------
-- SharedRead
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = %s FOR UPDATE SKIP LOCKED;

-- by key, mapped lazy='joined' --------------------------------------------------------------------
-- SharedRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %s LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %s LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %s LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %s FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %s FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %s FOR UPDATE SKIP LOCKED;

-- by keys, plain ----------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%s, %s, %s) ORDER BY shop_order.id;

-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s, %s) ORDER BY shop_order.id LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s, %s) ORDER BY shop_order.id LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s, %s) ORDER BY shop_order.id LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s, %s) ORDER BY shop_order.id FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s, %s) ORDER BY shop_order.id FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s, %s) ORDER BY shop_order.id FOR UPDATE SKIP LOCKED;

-- by keys, composite ------------------------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %s AND shop_voucher.number = %s OR shop_voucher.year = %s AND shop_voucher.number = %s ORDER BY shop_voucher.year, shop_voucher.number;

-- SharedRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FORCE INDEX (PRIMARY)
WHERE shop_voucher.year = %s AND shop_voucher.number = %s OR shop_voucher.year = %s AND shop_voucher.number = %s ORDER BY shop_voucher.year, shop_voucher.number LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FORCE INDEX (PRIMARY)
WHERE shop_voucher.year = %s AND shop_voucher.number = %s OR shop_voucher.year = %s AND shop_voucher.number = %s ORDER BY shop_voucher.year, shop_voucher.number LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FORCE INDEX (PRIMARY)
WHERE shop_voucher.year = %s AND shop_voucher.number = %s OR shop_voucher.year = %s AND shop_voucher.number = %s ORDER BY shop_voucher.year, shop_voucher.number LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FORCE INDEX (PRIMARY)
WHERE shop_voucher.year = %s AND shop_voucher.number = %s OR shop_voucher.year = %s AND shop_voucher.number = %s ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FORCE INDEX (PRIMARY)
WHERE shop_voucher.year = %s AND shop_voucher.number = %s OR shop_voucher.year = %s AND shop_voucher.number = %s ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FORCE INDEX (PRIMARY)
WHERE shop_voucher.year = %s AND shop_voucher.number = %s OR shop_voucher.year = %s AND shop_voucher.number = %s ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE SKIP LOCKED;

-- by keys, schema and quoted names ----------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`Key` IN (%s, %s) ORDER BY books.`Journal of Group`.`Key`;

-- SharedRead
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` FORCE INDEX (PRIMARY)
WHERE books.`Journal of Group`.`Key` IN (%s, %s) ORDER BY books.`Journal of Group`.`Key` LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` FORCE INDEX (PRIMARY)
WHERE books.`Journal of Group`.`Key` IN (%s, %s) ORDER BY books.`Journal of Group`.`Key` LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` FORCE INDEX (PRIMARY)
WHERE books.`Journal of Group`.`Key` IN (%s, %s) ORDER BY books.`Journal of Group`.`Key` LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` FORCE INDEX (PRIMARY)
WHERE books.`Journal of Group`.`Key` IN (%s, %s) ORDER BY books.`Journal of Group`.`Key` FOR UPDATE;

-- ForUpdate|NoWait
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` FORCE INDEX (PRIMARY)
WHERE books.`Journal of Group`.`Key` IN (%s, %s) ORDER BY books.`Journal of Group`.`Key` FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group` FORCE INDEX (PRIMARY)
WHERE books.`Journal of Group`.`Key` IN (%s, %s) ORDER BY books.`Journal of Group`.`Key` FOR UPDATE SKIP LOCKED;

-- by keys, joined inheritance: the root's rows ----------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (%s, %s) ORDER BY shop_contract.id;

-- SharedRead
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract FORCE INDEX (PRIMARY)
WHERE shop_contract.id IN (%s, %s) ORDER BY shop_contract.id LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract FORCE INDEX (PRIMARY)
WHERE shop_contract.id IN (%s, %s) ORDER BY shop_contract.id LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract FORCE INDEX (PRIMARY)
WHERE shop_contract.id IN (%s, %s) ORDER BY shop_contract.id LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract FORCE INDEX (PRIMARY)
WHERE shop_contract.id IN (%s, %s) ORDER BY shop_contract.id FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract FORCE INDEX (PRIMARY)
WHERE shop_contract.id IN (%s, %s) ORDER BY shop_contract.id FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract FORCE INDEX (PRIMARY)
WHERE shop_contract.id IN (%s, %s) ORDER BY shop_contract.id FOR UPDATE SKIP LOCKED;

-- by keys, single-table inheritance ---------------------------------------------------------------
-- None_, NoLock, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id IN (%s, %s) AND shop_ticket.kind IN (%s) ORDER BY shop_ticket.id;

-- SharedRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket FORCE INDEX (PRIMARY)
WHERE shop_ticket.id IN (%s, %s) AND shop_ticket.kind IN (%s) ORDER BY shop_ticket.id LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket FORCE INDEX (PRIMARY)
WHERE shop_ticket.id IN (%s, %s) AND shop_ticket.kind IN (%s) ORDER BY shop_ticket.id LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket FORCE INDEX (PRIMARY)
WHERE shop_ticket.id IN (%s, %s) AND shop_ticket.kind IN (%s) ORDER BY shop_ticket.id LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket FORCE INDEX (PRIMARY)
WHERE shop_ticket.id IN (%s, %s) AND shop_ticket.kind IN (%s) ORDER BY shop_ticket.id FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket FORCE INDEX (PRIMARY)
WHERE shop_ticket.id IN (%s, %s) AND shop_ticket.kind IN (%s) ORDER BY shop_ticket.id FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket FORCE INDEX (PRIMARY)
WHERE shop_ticket.id IN (%s, %s) AND shop_ticket.kind IN (%s) ORDER BY shop_ticket.id FOR UPDATE SKIP LOCKED;

-- by keys, mapped lazy='joined' -------------------------------------------------------------------
-- None_
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total, shop_customer_1.id AS id_1, shop_customer_1.name
FROM shop_invoice INNER JOIN shop_customer AS shop_customer_1 ON shop_customer_1.id = shop_invoice.customer_id
WHERE shop_invoice.id IN (%s, %s) ORDER BY shop_invoice.id;

-- NoLock, SnapshotRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id IN (%s, %s) ORDER BY shop_invoice.id;

-- SharedRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FORCE INDEX (PRIMARY)
WHERE shop_invoice.id IN (%s, %s) ORDER BY shop_invoice.id LOCK IN SHARE MODE;

-- SharedRead|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FORCE INDEX (PRIMARY)
WHERE shop_invoice.id IN (%s, %s) ORDER BY shop_invoice.id LOCK IN SHARE MODE NOWAIT;

-- SharedRead|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FORCE INDEX (PRIMARY)
WHERE shop_invoice.id IN (%s, %s) ORDER BY shop_invoice.id LOCK IN SHARE MODE SKIP LOCKED;

-- ForUpdate
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FORCE INDEX (PRIMARY)
WHERE shop_invoice.id IN (%s, %s) ORDER BY shop_invoice.id FOR UPDATE;

-- ForUpdate|NoWait
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FORCE INDEX (PRIMARY)
WHERE shop_invoice.id IN (%s, %s) ORDER BY shop_invoice.id FOR UPDATE NOWAIT;

-- ForUpdate|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice FORCE INDEX (PRIMARY)
WHERE shop_invoice.id IN (%s, %s) ORDER BY shop_invoice.id FOR UPDATE SKIP LOCKED;

-- by key, plain; 0.3 s ----------------------------------------------------------------------------
-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s LOCK IN SHARE MODE WAIT 1;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE WAIT 1;

-- by key, joined inheritance: the root's row; 0.3 s -----------------------------------------------
-- SharedRead
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %s LOCK IN SHARE MODE WAIT 1;

-- ForUpdate
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %s FOR UPDATE WAIT 1;

-- by keys, plain; 0.3 s ---------------------------------------------------------------------------
-- SharedRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s, %s) ORDER BY shop_order.id LOCK IN SHARE MODE WAIT 1;

-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s, %s) ORDER BY shop_order.id FOR UPDATE WAIT 1;

-- by keys, joined inheritance: the root's rows; 0.3 s ---------------------------------------------
-- SharedRead
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract FORCE INDEX (PRIMARY)
WHERE shop_contract.id IN (%s, %s) ORDER BY shop_contract.id LOCK IN SHARE MODE WAIT 1;

-- ForUpdate
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract FORCE INDEX (PRIMARY)
WHERE shop_contract.id IN (%s, %s) ORDER BY shop_contract.id FOR UPDATE WAIT 1;

-- parts, one level --------------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %s ORDER BY shop_box.id;

-- parts, one level, of several --------------------------------------------------------------------
-- None_, NoLock
SELECT shop_box.id, shop_box.delivery_id, shop_box.delivery_id AS delivery_id__1
FROM shop_box
WHERE shop_box.delivery_id IN (%s, %s) ORDER BY shop_box.id;

-- parts, two levels -------------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box INNER JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %s ORDER BY shop_item.id;

-- parts, two levels, of several -------------------------------------------------------------------
-- None_, NoLock
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box INNER JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id IN (%s, %s) ORDER BY shop_item.id;

-- parts, many-to-many -----------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_label.id
FROM shop_label INNER JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %s ORDER BY shop_label.id;

-- parts, many-to-many, of several -----------------------------------------------------------------
-- None_, NoLock
SELECT shop_label.id, shop_delivery_label.delivery_id
FROM shop_label INNER JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id IN (%s, %s) ORDER BY shop_label.id;

-- parts, composite key ----------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_voucher_entry.id, shop_voucher_entry.year, shop_voucher_entry.number
FROM shop_voucher_entry
WHERE shop_voucher_entry.year = %s AND shop_voucher_entry.number = %s;

-- parts, composite key, of several ----------------------------------------------------------------
-- None_, NoLock
SELECT shop_voucher_entry.id, shop_voucher_entry.year, shop_voucher_entry.number, shop_voucher_entry.year AS year__1, shop_voucher_entry.number AS number__1
FROM shop_voucher_entry
WHERE shop_voucher_entry.year = %s AND shop_voucher_entry.number = %s OR shop_voucher_entry.year = %s AND shop_voucher_entry.number = %s;

-- claims, keys ------------------------------------------------------------------------------------
-- None_
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > %s ORDER BY shop_order.total, shop_order.id
LIMIT %s;

-- claims, keys after the first page ---------------------------------------------------------------
-- None_
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > %s AND shop_order.id > %s ORDER BY shop_order.id
LIMIT %s;

-- claims, keys after the first page, composite ----------------------------------------------------
-- None_
SELECT shop_voucher.year, shop_voucher.number
FROM shop_voucher
WHERE shop_voucher.year > %s OR shop_voucher.year = %s AND shop_voucher.number > %s ORDER BY shop_voucher.year, shop_voucher.number
LIMIT %s;

-- claims, keys of what still matches --------------------------------------------------------------
-- None_
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > %s AND shop_order.id IN (%s, %s);

-- claims, a row again -----------------------------------------------------------------------------
-- None_
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.rent > %s AND shop_lease.id = %s;

-- claims, one -------------------------------------------------------------------------------------
-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %s AND shop_order.id = %s FOR UPDATE;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %s AND shop_order.id = %s FOR UPDATE SKIP LOCKED;

-- claims, of several ------------------------------------------------------------------------------
-- ForUpdate
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.total > %s AND shop_order.id IN (%s, %s) ORDER BY shop_order.id FOR UPDATE;

-- ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.total > %s AND shop_order.id IN (%s, %s) ORDER BY shop_order.id FOR UPDATE SKIP LOCKED;

-- claims, composite, of several -------------------------------------------------------------------
-- ForUpdate
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FORCE INDEX (PRIMARY)
WHERE shop_voucher.year = %s AND shop_voucher.number = %s OR shop_voucher.year = %s AND shop_voucher.number = %s ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE;

-- ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FORCE INDEX (PRIMARY)
WHERE shop_voucher.year = %s AND shop_voucher.number = %s OR shop_voucher.year = %s AND shop_voucher.number = %s ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE SKIP LOCKED;

-- claims, joined inheritance, of several ----------------------------------------------------------
-- ForUpdate
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract FORCE INDEX (PRIMARY) INNER JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.rent > %s AND shop_lease.id IN (%s, %s) ORDER BY shop_lease.id FOR UPDATE;

-- ForUpdate|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract FORCE INDEX (PRIMARY) INNER JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.rent > %s AND shop_lease.id IN (%s, %s) ORDER BY shop_lease.id FOR UPDATE SKIP LOCKED;
