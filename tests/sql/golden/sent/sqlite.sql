-- sqlite: what a session tells the driver, call by call.  Parameters stand behind their statement, what
-- the driver does by a method is in parentheses.  A limit to the wait that is in no compiled text is
-- here.

-- get_entity ForUpdate ----------------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate|NoWait ---------------------------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 0
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, lock_timeout 0.3 ----------------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, composite key, lock_timeout 0.3 -------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = ? AND shop_voucher.number = ?  -- 1, 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, schema and quoted names ---------------------------------------------------
BEGIN IMMEDIATE
PRAGMA books.incremental_vacuum(1)
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate|NoWait, joined inheritance -------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 0
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead ---------------------------------------------------------------------------
BEGIN
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead, joined inheritance -------------------------------------------------------
BEGIN
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead|NoWait --------------------------------------------------------------------
BEGIN
PRAGMA busy_timeout
PRAGMA busy_timeout = 0
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
PRAGMA busy_timeout = 5000
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead, lock_timeout 0.3 ---------------------------------------------------------
BEGIN
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
PRAGMA busy_timeout = 5000
(rollback)
(back to the pool)
(rollback)

-- get_entity SnapshotRead -------------------------------------------------------------------------
BEGIN
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity NoLock -------------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate of a missing row -----------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 99
(rollback)
(back to the pool)
(rollback)

-- get_or_create_entity of a missing row -----------------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 2000
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 99
SAVEPOINT sa_savepoint_1
INSERT INTO shop_order (id, customer_id, total) VALUES (?, ?, ?)  -- 99, 1, 0
RELEASE SAVEPOINT sa_savepoint_1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 99
(rollback)
(back to the pool)
(rollback)

-- get_or_create_entity of a missing row, by a unique key ------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 2000
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.severity = ? AND shop_ticket.kind IN (?)  -- 99, 'fault'
SAVEPOINT sa_savepoint_1
INSERT INTO shop_ticket (id, kind, total, severity) VALUES (?, ?, ?, ?)  -- 99, 'fault', 0, 99
RELEASE SAVEPOINT sa_savepoint_1
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.severity = ? AND shop_ticket.kind IN (?)  -- 99, 'fault'
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate of the same twice ----------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, mapped lazy='joined' ------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = ?  -- 1
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id IN (?)  -- 1
(rollback)
(back to the pool)
(rollback)

-- locked, changes ---------------------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
SELECT shop_line.id, shop_line.order_id, shop_line.value
FROM shop_line
WHERE ? = shop_line.order_id  -- 1
UPDATE shop_order SET total=? WHERE shop_order.id = ?  -- 7, 1
(commit)
(back to the pool)
(rollback)

-- locked, changes to joined inheritance, lock_timeout 0.3 -----------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = ?  -- 1
UPDATE shop_contract SET total=? WHERE shop_contract.id = ?  -- 7, 1
UPDATE shop_lease SET rent=? WHERE shop_lease.id = ?  -- 8, 1
(commit)
(back to the pool)
(rollback)

-- locked, left by an exception --------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
UPDATE shop_order SET total=? WHERE shop_order.id = ?  -- 7, 1
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, limit 10 ------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT ? OFFSET ?  -- 10, 0
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate|SkipLocked, limit 10 -------------------------------------------------------
-- raises LockNotSupported

-- entity_set SharedRead|SkipLocked, limit 10 ------------------------------------------------------
-- raises LockNotSupported

-- entity_set ForUpdate, joined inheritance --------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, no parameters, lock_timeout 0.3 -------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, a join, lock_timeout 0.3 --------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ?  -- 0
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, names and texts in quotes, lock_timeout 0.3 -------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
PRAGMA books.incremental_vacuum(1)
PRAGMA busy_timeout = 5000
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Name" = 'it''s'
(rollback)
(back to the pool)
(rollback)

-- with_lock ForUpdate, a join ---------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ?  -- 0
(rollback)
(back to the pool)
(rollback)

-- after a plain read, ForUpdate -------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SharedRead ------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
BEGIN
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SharedRead|NoWait -----------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
BEGIN
PRAGMA busy_timeout
PRAGMA busy_timeout = 0
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
PRAGMA busy_timeout = 5000
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SnapshotRead ----------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
BEGIN
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- ForUpdate, then another in a savepoint ----------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
SAVEPOINT sa_savepoint_1
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = ?  -- 1
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id IN (?)  -- 1
RELEASE SAVEPOINT sa_savepoint_1
(commit)
(back to the pool)
(rollback)

-- begin, savepoint, ForUpdate ---------------------------------------------------------------------
BEGIN
ROLLBACK
BEGIN IMMEDIATE
SAVEPOINT sa_savepoint_1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
RELEASE SAVEPOINT sa_savepoint_1
(commit)
(back to the pool)
(rollback)

-- get_entities ForUpdate --------------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, lock_timeout 0.3 --------------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate|SkipLocked ---------------------------------------------------------------
-- raises LockNotSupported

-- get_entities SharedRead -------------------------------------------------------------------------
BEGIN
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities NoLock -----------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, composite key -----------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = ? AND shop_voucher.number = ? OR shop_voucher.year = ? AND shop_voucher.number = ? ORDER BY shop_voucher.year, shop_voucher.number  -- 1, 1, 2, 1
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, joined inheritance ------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id IN (?, ?) ORDER BY shop_contract.id  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, one is held already -----------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (?) ORDER BY shop_order.id  -- 2
(rollback)
(back to the pool)
(rollback)

-- after a plain read, get_entities SharedRead -----------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
BEGIN
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_document ForUpdate --------------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = ?  -- 1
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
BEGIN
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = ?  -- 1
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

-- get_document NoLock -----------------------------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = ?  -- 1
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

-- get_documents ForUpdate -------------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id IN (?, ?) ORDER BY shop_delivery.id  -- 1, 2
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
BEGIN
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id IN (?, ?) ORDER BY shop_delivery.id  -- 1, 2
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

-- guard, UPDATE of headers ------------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = ?  -- 1
SELECT shop_delivery.id, count(*) AS count_1
FROM shop_delivery GROUP BY shop_delivery.id
UPDATE shop_delivery SET total=?  -- 7
(rollback)
(back to the pool)
(rollback)

-- guard, UPDATE and DELETE of parts ---------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = ?  -- 1
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
BEGIN IMMEDIATE
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = ?  -- 1
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
DELETE FROM shop_box WHERE shop_box.id > ?  -- 5
(rollback)
(back to the pool)
(rollback)

-- guard, a part of a part that is changed ---------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = ?  -- 1
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
BEGIN IMMEDIATE
(rollback)
(back to the pool)
(rollback)

-- lock_key shared ---------------------------------------------------------------------------------
BEGIN IMMEDIATE
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 0 ------------------------------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 0
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
(rollback)
(back to the pool)
(rollback)

-- lock_key shared, lock_timeout 0 -----------------------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 0
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 0.3 ----------------------------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 5 ------------------------------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 5000
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
(rollback)
(back to the pool)
(rollback)

-- lock_key of two, twice --------------------------------------------------------------------------
BEGIN IMMEDIATE
(commit)
(back to the pool)
(rollback)

-- lock_key, then locked ---------------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
UPDATE shop_order SET total=? WHERE shop_order.id = ?  -- 6, 1
(commit)
(back to the pool)
(rollback)

-- after a plain read, lock_key --------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = ?  -- 1
BEGIN IMMEDIATE
(rollback)
(back to the pool)
(rollback)

-- claim_each --------------------------------------------------------------------------------------
SELECT name FROM sqlite_master WHERE type='view' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name
(rollback)
(back to the pool)
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > ? ORDER BY shop_order.id
LIMIT ? OFFSET ?  -- 0, 101, 0
(commit)
(back to the pool)
(rollback)
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > ? AND shop_order.id = ?  -- 0, 1
UPDATE shop_order SET total=? WHERE shop_order.id = ?  -- 7, 1
(commit)
(back to the pool)
(rollback)

-- claim_each in batches ---------------------------------------------------------------------------
SELECT name FROM sqlite_master WHERE type='view' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name
(rollback)
(back to the pool)
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > ? ORDER BY shop_order.id
LIMIT ? OFFSET ?  -- 0, 101, 0
(commit)
(back to the pool)
(rollback)
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > ? AND shop_order.id = ?  -- 0, 1
SAVEPOINT sa_savepoint_1
UPDATE shop_order SET total=? WHERE shop_order.id = ?  -- 7, 1
RELEASE SAVEPOINT sa_savepoint_1
(commit)
(back to the pool)
(rollback)

-- batch session, ForUpdate ------------------------------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 0
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of the program ----------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(nowait=True) of the program -----------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 0
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(skip_locked=True) of the program ------------------------------------------------
-- raises LockNotSupported

-- with_for_update(read=True) of the program -------------------------------------------------------
BEGIN
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(key_share=True) of the program --------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(read=True, key_share=True) of the program ---------------------------------------
BEGIN
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of a table --------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of an alias, a join -----------------------------------------------------------
BEGIN IMMEDIATE
SELECT o.id
FROM shop_order AS o JOIN shop_line ON shop_line.order_id = o.id
(rollback)
(back to the pool)
(rollback)

-- with_for_update(of=) of a join of tables --------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id
FROM shop_order JOIN shop_line ON shop_line.order_id = shop_order.id
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of a literal ------------------------------------------------------------------
BEGIN IMMEDIATE
SELECT ? AS anon_1
FROM shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get(with_for_update=True) of the program --------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
(rollback)
(back to the pool)
(rollback)
