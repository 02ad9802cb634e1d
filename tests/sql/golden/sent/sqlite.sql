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
PRAGMA busy_timeout
PRAGMA busy_timeout = 0
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
PRAGMA busy_timeout = 5000
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, lock_timeout 0.3 ----------------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
BEGIN IMMEDIATE
PRAGMA busy_timeout = 5000
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?  -- 1
PRAGMA busy_timeout = 5000
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

-- get_entity SharedRead, lock_timeout 0.3 ---------------------------------------------------------
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
BEGIN
PRAGMA busy_timeout = 5000
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
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = ?  -- 1
PRAGMA busy_timeout = 5000
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

-- entity_set ForUpdate, joined inheritance --------------------------------------------------------
BEGIN IMMEDIATE
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
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
PRAGMA busy_timeout
PRAGMA busy_timeout = 0
BEGIN
PRAGMA busy_timeout = 5000
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
PRAGMA busy_timeout
PRAGMA busy_timeout = 300
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (?, ?) ORDER BY shop_order.id  -- 1, 2
PRAGMA busy_timeout = 5000
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
SELECT shop_box.id, shop_box.delivery_id, shop_box.delivery_id AS delivery_id__1
FROM shop_box
WHERE shop_box.delivery_id = ? ORDER BY shop_box.id  -- 1
SELECT shop_label.id, shop_delivery_label.delivery_id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = ? ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_box.id AS id_1
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
SELECT shop_box.id, shop_box.delivery_id, shop_box.delivery_id AS delivery_id__1
FROM shop_box
WHERE shop_box.delivery_id = ? ORDER BY shop_box.id  -- 1
SELECT shop_label.id, shop_delivery_label.delivery_id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = ? ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = ? ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_document NoLock -----------------------------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = ?  -- 1
SELECT shop_box.id, shop_box.delivery_id, shop_box.delivery_id AS delivery_id__1
FROM shop_box
WHERE shop_box.delivery_id = ? ORDER BY shop_box.id  -- 1
SELECT shop_label.id, shop_delivery_label.delivery_id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = ? ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = ? ORDER BY shop_item.id  -- 1
(rollback)
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
