-- mssql: what a session tells the driver, call by call.  Parameters stand behind their statement, what
-- the driver does by a method is in parentheses.  A limit to the wait that is in no compiled text is
-- here.

-- get_entity ForUpdate ----------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate|NoWait ---------------------------------------------------------------------
SET LOCK_TIMEOUT 0; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, lock_timeout 0.3 ----------------------------------------------------------
SET LOCK_TIMEOUT 300; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, composite key, lock_timeout 0.3 -------------------------------------------
SET LOCK_TIMEOUT 300; SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_voucher.year = ? AND shop_voucher.number = ?  -- 1, 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, schema and quoted names ---------------------------------------------------
SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE books.[Journal of Group].[Key] = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate|NoWait, joined inheritance -------------------------------------------------
SET LOCK_TIMEOUT 0; SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_contract.id = ?  -- 1
SET LOCK_TIMEOUT 0; SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead ---------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL SNAPSHOT
(commit)
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- get_entity SharedRead, joined inheritance -------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL SNAPSHOT
(commit)
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- get_entity SharedRead|NoWait --------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL SNAPSHOT
(commit)
SET LOCK_TIMEOUT 0; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- get_entity SharedRead, lock_timeout 0.3 ---------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL SNAPSHOT
(commit)
SET LOCK_TIMEOUT 300; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- get_entity SnapshotRead -------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL SNAPSHOT
(commit)
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- get_entity NoLock -------------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK)
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate of a missing row -----------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 99
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_or_create_entity of a missing row -----------------------------------------------------------
SET LOCK_TIMEOUT 2000; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 99
SELECT CURRENT_TRANSACTION_ID()
SELECT @@LOCK_TIMEOUT
SET LOCK_TIMEOUT 2000
IF @@TRANCOUNT = 0 BEGIN TRANSACTION
SAVE TRANSACTION sa_savepoint_1
SET IDENTITY_INSERT shop_order ON
INSERT INTO shop_order (id, customer_id, total) VALUES (?, ?, ?)  -- 99, 1, 0
SET IDENTITY_INSERT shop_order OFF
SET LOCK_TIMEOUT -1
SET LOCK_TIMEOUT 2000; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 99
(rollback)
(back to the pool)
(rollback)
-- raises LockMisuse

-- get_or_create_entity of a missing row, by a unique key ------------------------------------------
SET LOCK_TIMEOUT 2000; SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (UPDLOCK, ROWLOCK)
WHERE shop_ticket.severity = ? AND shop_ticket.kind IN (?)  -- 99, 'fault'
SELECT CURRENT_TRANSACTION_ID()
SELECT @@LOCK_TIMEOUT
SET LOCK_TIMEOUT 2000
IF @@TRANCOUNT = 0 BEGIN TRANSACTION
SAVE TRANSACTION sa_savepoint_1
SET IDENTITY_INSERT shop_ticket ON
INSERT INTO shop_ticket (id, kind, total, severity) VALUES (?, ?, ?, ?)  -- 99, 'fault', 0, 99
SET IDENTITY_INSERT shop_ticket OFF
SET LOCK_TIMEOUT -1
SET LOCK_TIMEOUT 2000; SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket WITH (UPDLOCK, ROWLOCK)
WHERE shop_ticket.severity = ? AND shop_ticket.kind IN (?)  -- 99, 'fault'
(rollback)
(back to the pool)
(rollback)
-- raises LockMisuse

-- get_entity ForUpdate of the same twice ----------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, mapped lazy='joined' ------------------------------------------------------
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_invoice.id = ?  -- 1
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id IN (?)  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- locked, changes ---------------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
SELECT shop_line.id, shop_line.order_id, shop_line.value
FROM shop_line
WHERE shop_line.order_id = ?  -- 1
UPDATE shop_order SET total=? WHERE shop_order.id = ?  -- 7, 1
(commit)
(back to the pool)
(rollback)

-- locked, changes to joined inheritance, lock_timeout 0.3 -----------------------------------------
SET LOCK_TIMEOUT 300; SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_contract.id = ?  -- 1
SET LOCK_TIMEOUT 300; SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
UPDATE shop_contract SET total=? WHERE shop_contract.id = ?  -- 7, 1
UPDATE shop_lease SET rent=? WHERE shop_lease.id = ?  -- 8, 1
(commit)
(back to the pool)
(rollback)

-- locked, left by an exception --------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
UPDATE shop_order SET total=? WHERE shop_order.id = ?  -- 7, 1
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, limit 10 ------------------------------------------------------------------
SELECT TOP 10 shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK) ORDER BY shop_order.id
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate|SkipLocked, limit 10 -------------------------------------------------------
SELECT TOP 10 shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY shop_order.id
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- entity_set SharedRead|SkipLocked, limit 10 ------------------------------------------------------
SELECT TOP 10 shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY shop_order.id
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, joined inheritance --------------------------------------------------------
SELECT shop_lease.id
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_contract.id IN (?) ORDER BY shop_contract.id  -- 1
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.id IN (?)  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, no parameters, lock_timeout 0.3 -------------------------------------------
EXEC sp_executesql N'SET LOCK_TIMEOUT 300; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)'
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, a join, lock_timeout 0.3 --------------------------------------------------
SET LOCK_TIMEOUT 300; SELECT shop_order.id
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ?  -- 0
SET LOCK_TIMEOUT 300; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id IN (?) ORDER BY shop_order.id  -- 1
SET LOCK_TIMEOUT 300; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ? AND shop_order.id IN (?)  -- 0, 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, names and texts in quotes, lock_timeout 0.3 -------------------------------
EXEC sp_executesql N'SET LOCK_TIMEOUT 300; SELECT books.[Journal of Group].[Key], books.[Journal of Group].[order], books.[Journal of Group].[Name]
FROM books.[Journal of Group] WITH (UPDLOCK, ROWLOCK)
WHERE books.[Journal of Group].[Name] = ''it''''s'''
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- with_lock ForUpdate, a join ---------------------------------------------------------------------
SELECT shop_order.id
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ?  -- 0
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id IN (?) ORDER BY shop_order.id  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ? AND shop_order.id IN (?)  -- 0, 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- after a plain read, ForUpdate -------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SharedRead ------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SharedRead|NoWait -----------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
SET LOCK_TIMEOUT 0; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SnapshotRead ----------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
-- raises WrongIsolation
(rollback)
(back to the pool)
(rollback)

-- ForUpdate, then another in a savepoint ----------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
IF @@TRANCOUNT = 0 BEGIN TRANSACTION
SAVE TRANSACTION sa_savepoint_1
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_invoice.id = ?  -- 1
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id IN (?)  -- 1
(commit)
(back to the pool)
(rollback)

-- begin, savepoint, ForUpdate ---------------------------------------------------------------------
IF @@TRANCOUNT = 0 BEGIN TRANSACTION
SAVE TRANSACTION sa_savepoint_1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(commit)
(back to the pool)
(rollback)

-- get_entities ForUpdate --------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, lock_timeout 0.3 --------------------------------------------------------
SET LOCK_TIMEOUT 300; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate|SkipLocked ---------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entities SharedRead -------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL SNAPSHOT
(commit)
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- get_entities NoLock -----------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (NOLOCK)
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, composite key -----------------------------------------------------------
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_voucher.year = ? AND shop_voucher.number = ? OR shop_voucher.year = ? AND shop_voucher.number = ? ORDER BY shop_voucher.year, shop_voucher.number  -- 1, 1, 2, 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, joined inheritance ------------------------------------------------------
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_contract.id IN (?, ?) ORDER BY shop_contract.id  -- 1, 2
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id IN (?) ORDER BY shop_contract.id  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, one is held already -----------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id IN (?) ORDER BY shop_order.id  -- 2
(rollback)
(back to the pool)
(rollback)

-- after a plain read, get_entities SharedRead -----------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- get_document ForUpdate --------------------------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_delivery.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = ? ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = ? ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = ? ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_document SnapshotRead -----------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL SNAPSHOT
(commit)
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = ? ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = ? ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = ? ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- get_document NoLock -----------------------------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery WITH (NOLOCK)
WHERE shop_delivery.id = ?  -- 1
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box WITH (NOLOCK)
WHERE shop_box.delivery_id = ? ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label WITH (NOLOCK) JOIN shop_delivery_label WITH (NOLOCK) ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = ? ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box WITH (NOLOCK) JOIN shop_item WITH (NOLOCK) ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = ? ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_documents ForUpdate -------------------------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_delivery.id IN (?, ?) ORDER BY shop_delivery.id  -- 1, 2
SELECT CURRENT_TRANSACTION_ID()
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = ? ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = ? ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = ? ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_documents SnapshotRead ----------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL SNAPSHOT
(commit)
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id IN (?, ?) ORDER BY shop_delivery.id  -- 1, 2
SELECT CURRENT_TRANSACTION_ID()
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = ? ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = ? ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = ? ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- guard, UPDATE of headers ------------------------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_delivery.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
SELECT shop_delivery.id, count(*) AS count_1
FROM shop_delivery GROUP BY shop_delivery.id
UPDATE shop_delivery SET total=?  -- 7
(rollback)
(back to the pool)
(rollback)

-- guard, UPDATE and DELETE of parts ---------------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_delivery.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
SELECT shop_box.delivery_id, count(*) AS count_1
FROM shop_box
WHERE shop_box.id > ? GROUP BY shop_box.delivery_id  -- 0
UPDATE shop_box SET delivery_id=? WHERE shop_box.id > ?  -- 1, 0
SELECT shop_box.delivery_id, count(*) AS count_1
FROM shop_box
WHERE shop_box.delivery_id = ? GROUP BY shop_box.delivery_id  -- 1
DELETE FROM shop_box WHERE shop_box.delivery_id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- guard, UPDATE and DELETE of parts of parts ------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_delivery.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
SELECT shop_item.box_id, count(*) AS count_1
FROM shop_item
WHERE shop_item.box_id = ? GROUP BY shop_item.box_id  -- 1
SELECT shop_box_1.id, shop_delivery_1.id AS id_1
FROM shop_delivery AS shop_delivery_1 JOIN shop_box AS shop_box_1 ON shop_delivery_1.id = shop_box_1.delivery_id
WHERE shop_box_1.id IN (?)  -- 1
UPDATE shop_item SET name=? WHERE shop_item.box_id = ?  -- 'b', 1
SELECT shop_item.box_id, count(*) AS count_1
FROM shop_item GROUP BY shop_item.box_id
SELECT shop_box_1.id, shop_delivery_1.id AS id_1
FROM shop_delivery AS shop_delivery_1 JOIN shop_box AS shop_box_1 ON shop_delivery_1.id = shop_box_1.delivery_id
WHERE shop_box_1.id IN (?)  -- 1
DELETE FROM shop_item
(rollback)
(back to the pool)
(rollback)

-- guard, DELETE without a lock --------------------------------------------------------------------
SELECT shop_box.delivery_id, count(*) AS count_1
FROM shop_box
WHERE shop_box.id > ? GROUP BY shop_box.delivery_id  -- 5
-- raises UnlockedWrite
(rollback)
(back to the pool)
(rollback)

-- guard, a part of a part that is changed ---------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_delivery.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
SELECT shop_item.id, shop_item.box_id, shop_item.name
FROM shop_item
WHERE shop_item.id = ?  -- 1
SELECT shop_box_1.id, shop_delivery_1.id AS id_1
FROM shop_delivery AS shop_delivery_1 JOIN shop_box AS shop_box_1 ON shop_delivery_1.id = shop_box_1.delivery_id
WHERE shop_box_1.id IN (?)  -- 1
UPDATE shop_item SET name=? WHERE shop_item.id = ?  -- 'b', 1
(commit)
(back to the pool)
(rollback)

-- lock_key ----------------------------------------------------------------------------------------
DECLARE @doclock int; EXEC @doclock = sp_getapplock @Resource = ?, @LockMode = 'Exclusive', @LockOwner = 'Transaction'; SELECT @doclock  -- 'user:42'
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- lock_key shared ---------------------------------------------------------------------------------
DECLARE @doclock int; EXEC @doclock = sp_getapplock @Resource = ?, @LockMode = 'Shared', @LockOwner = 'Transaction'; SELECT @doclock  -- 'user:42'
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 0 ------------------------------------------------------------------------
DECLARE @doclock int; EXEC @doclock = sp_getapplock @Resource = ?, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 0; SELECT @doclock  -- 'user:42'
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- lock_key shared, lock_timeout 0 -----------------------------------------------------------------
DECLARE @doclock int; EXEC @doclock = sp_getapplock @Resource = ?, @LockMode = 'Shared', @LockOwner = 'Transaction', @LockTimeout = 0; SELECT @doclock  -- 'user:42'
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 0.3 ----------------------------------------------------------------------
DECLARE @doclock int; EXEC @doclock = sp_getapplock @Resource = ?, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 300; SELECT @doclock  -- 'user:42'
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 5 ------------------------------------------------------------------------
DECLARE @doclock int; EXEC @doclock = sp_getapplock @Resource = ?, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 5000; SELECT @doclock  -- 'user:42'
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- lock_key of two, twice --------------------------------------------------------------------------
DECLARE @doclock int; EXEC @doclock = sp_getapplock @Resource = ?, @LockMode = 'Exclusive', @LockOwner = 'Transaction'; SELECT @doclock  -- 'user:42'
SELECT CURRENT_TRANSACTION_ID()
DECLARE @doclock int; EXEC @doclock = sp_getapplock @Resource = ?, @LockMode = 'Exclusive', @LockOwner = 'Transaction'; SELECT @doclock  -- '_o__s_own#03838b7a8a50011e20d6c7c3d01e54af'
(commit)
(back to the pool)
(rollback)

-- lock_key, then locked ---------------------------------------------------------------------------
DECLARE @doclock int; EXEC @doclock = sp_getapplock @Resource = ?, @LockMode = 'Exclusive', @LockOwner = 'Transaction'; SELECT @doclock  -- 'user:42'
SELECT CURRENT_TRANSACTION_ID()
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE shop_order.id = ?  -- 1
UPDATE shop_order SET total=? WHERE shop_order.id = ?  -- 6, 1
(commit)
(back to the pool)
(rollback)

-- after a plain read, lock_key --------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
DECLARE @doclock int; EXEC @doclock = sp_getapplock @Resource = ?, @LockMode = 'Exclusive', @LockOwner = 'Transaction'; SELECT @doclock  -- 'user:42'
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- claim_each --------------------------------------------------------------------------------------
SELECT [INFORMATION_SCHEMA].[TABLES].[TABLE_NAME]
FROM [INFORMATION_SCHEMA].[TABLES]
WHERE [INFORMATION_SCHEMA].[TABLES].[TABLE_SCHEMA] = CAST(? AS NVARCHAR(max)) AND [INFORMATION_SCHEMA].[TABLES].[TABLE_TYPE] = CAST(? AS NVARCHAR(max)) ORDER BY [INFORMATION_SCHEMA].[TABLES].[TABLE_NAME]  -- 'dbo', 'VIEW'
(rollback)
(back to the pool)
SELECT TOP 101 shop_order.id
FROM shop_order
WHERE shop_order.total > ? ORDER BY shop_order.id  -- 0
(commit)
(back to the pool)
(rollback)
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_order.total > ? AND shop_order.id = ?  -- 0, 1
SELECT CURRENT_TRANSACTION_ID()
UPDATE shop_order SET total=? WHERE shop_order.id = ?  -- 7, 1
(commit)
(back to the pool)
(rollback)

-- claim_each in batches ---------------------------------------------------------------------------
SELECT [INFORMATION_SCHEMA].[TABLES].[TABLE_NAME]
FROM [INFORMATION_SCHEMA].[TABLES]
WHERE [INFORMATION_SCHEMA].[TABLES].[TABLE_SCHEMA] = CAST(? AS NVARCHAR(max)) AND [INFORMATION_SCHEMA].[TABLES].[TABLE_TYPE] = CAST(? AS NVARCHAR(max)) ORDER BY [INFORMATION_SCHEMA].[TABLES].[TABLE_NAME]  -- 'dbo', 'VIEW'
(rollback)
(back to the pool)
SELECT TOP 101 shop_order.id
FROM shop_order
WHERE shop_order.total > ? ORDER BY shop_order.id  -- 0
(commit)
(back to the pool)
(rollback)
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK, FORCESEEK)
WHERE shop_order.total > ? AND shop_order.id = ?  -- 0, 1
SELECT CURRENT_TRANSACTION_ID()
IF @@TRANCOUNT = 0 BEGIN TRANSACTION
SAVE TRANSACTION sa_savepoint_1
UPDATE shop_order SET total=? WHERE shop_order.id = ?  -- 7, 1
(commit)
(back to the pool)
(rollback)

-- batch session, ForUpdate ------------------------------------------------------------------------
SELECT deadlock_priority FROM sys.dm_exec_sessions WHERE session_id = @@SPID
SET DEADLOCK_PRIORITY LOW
IF @@TRANCOUNT = 0 BEGIN TRANSACTION
SAVE TRANSACTION sa_savepoint_1
SET LOCK_TIMEOUT 60000; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
SET DEADLOCK_PRIORITY 0
(back to the pool)
(rollback)

-- with_for_update() of the program ----------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- with_for_update(nowait=True) of the program -----------------------------------------------------
SET LOCK_TIMEOUT 0; SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, NOWAIT)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- with_for_update(skip_locked=True) of the program ------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- with_for_update(read=True) of the program -------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- with_for_update(key_share=True) of the program --------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- with_for_update(read=True, key_share=True) of the program ---------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of a table --------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of an alias, a join -----------------------------------------------------------
SELECT o.id, o.customer_id, o.total, shop_line.order_id, shop_line.value
FROM shop_order AS o WITH (UPDLOCK, ROWLOCK) JOIN shop_line WITH (UPDLOCK, ROWLOCK) ON shop_line.order_id = o.id
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- with_for_update(of=) of a join of tables --------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK) JOIN shop_line ON shop_line.order_id = shop_order.id
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of a literal ------------------------------------------------------------------
SELECT ? AS anon_1, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)  -- 1
(rollback)
(back to the pool)
(rollback)

-- get(with_for_update=True) of the program --------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order WITH (UPDLOCK, ROWLOCK)
WHERE shop_order.id = ?  -- 1
SELECT CURRENT_TRANSACTION_ID()
(rollback)
(back to the pool)
(rollback)
