-- mysql: what a session tells the driver, call by call.  Parameters stand behind their statement, what
-- the driver does by a method is in parentheses.  A limit to the wait that is in no compiled text is
-- here.

-- get_entity ForUpdate ----------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate|NoWait ---------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order NOWAIT  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, lock_timeout 0.3 ----------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT /*+ MAX_EXECUTION_TIME(300) */ shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, composite key, lock_timeout 0.3 -------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_voucher
SELECT /*+ MAX_EXECUTION_TIME(300) */ shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %s AND shop_voucher.number = %s FOR UPDATE OF shop_voucher  -- 1, 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, schema and quoted names ---------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE books.`Journal of Group`
SELECT books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`Key` = %s FOR UPDATE OF `Journal of Group`  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate|NoWait, joined inheritance -------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_contract
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %s FOR UPDATE OF shop_contract NOWAIT  -- 1
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = %s  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead ---------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR SHARE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead, joined inheritance -------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_contract
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %s FOR SHARE OF shop_contract  -- 1
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = %s  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead|NoWait --------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR SHARE OF shop_order NOWAIT  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead, lock_timeout 0.3 ---------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT /*+ MAX_EXECUTION_TIME(300) */ shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR SHARE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SnapshotRead -------------------------------------------------------------------------
START TRANSACTION READ ONLY
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity NoLock -------------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate of a missing row -----------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 99
(rollback)
(back to the pool)
(rollback)

-- get_or_create_entity of a missing row -----------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT /*+ MAX_EXECUTION_TIME(2000) */ shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 99
SELECT GET_LOCK(%s, 2)  -- 'shop.insert_shop_order__99,_#939b1015c1e947899beee6379d455c3a'
SAVEPOINT sa_savepoint_1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order NOWAIT  -- 99
RELEASE SAVEPOINT sa_savepoint_1
SAVEPOINT sa_savepoint_2
INSERT INTO shop_order (id, customer_id, total) VALUES (%s, %s, %s)  -- 99, 1, 0
RELEASE SAVEPOINT sa_savepoint_2
DO RELEASE_LOCK('shop.insert_shop_order__99,_#939b1015c1e947899beee6379d455c3a')
SELECT /*+ MAX_EXECUTION_TIME(2000) */ shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 99
(rollback)
(back to the pool)
(rollback)
-- raises LockMisuse

-- get_or_create_entity of a missing row, by a unique key ------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_ticket
SELECT /*+ MAX_EXECUTION_TIME(2000) */ shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.severity = %s AND shop_ticket.kind IN (%s) FOR UPDATE OF shop_ticket  -- 99, 'fault'
SELECT GET_LOCK(%s, 2)  -- 'shop.insert_shop_ticket_severit#07e6ab9478757612ef876eb769ca07d1'
SAVEPOINT sa_savepoint_1
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.severity = %s AND shop_ticket.kind IN (%s) FOR UPDATE OF shop_ticket NOWAIT  -- 99, 'fault'
RELEASE SAVEPOINT sa_savepoint_1
SAVEPOINT sa_savepoint_2
INSERT INTO shop_ticket (id, kind, total, severity) VALUES (%s, %s, %s, %s)  -- 99, 'fault', 0, 99
RELEASE SAVEPOINT sa_savepoint_2
DO RELEASE_LOCK('shop.insert_shop_ticket_severit#07e6ab9478757612ef876eb769ca07d1')
SELECT /*+ MAX_EXECUTION_TIME(2000) */ shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.severity = %s AND shop_ticket.kind IN (%s) FOR UPDATE OF shop_ticket  -- 99, 'fault'
(rollback)
(back to the pool)
(rollback)
-- raises LockMisuse

-- get_entity ForUpdate of the same twice ----------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, mapped lazy='joined' ------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_invoice
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %s FOR UPDATE OF shop_invoice  -- 1
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id IN (%s)  -- 1
(rollback)
(back to the pool)
(rollback)

-- locked, changes ---------------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 1
SELECT shop_line.id, shop_line.order_id, shop_line.value
FROM shop_line
WHERE %s = shop_line.order_id  -- 1
UPDATE shop_order SET total=%s WHERE shop_order.id = %s  -- 7, 1
(commit)
(back to the pool)
(rollback)

-- locked, changes to joined inheritance, lock_timeout 0.3 -----------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_contract
SELECT /*+ MAX_EXECUTION_TIME(300) */ shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %s FOR UPDATE OF shop_contract  -- 1
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = %s  -- 1
UPDATE shop_contract SET total=%s WHERE shop_contract.id = %s  -- 7, 1
UPDATE shop_lease SET rent=%s WHERE shop_lease.id = %s  -- 8, 1
(commit)
(back to the pool)
(rollback)

-- locked, left by an exception --------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 1
UPDATE shop_order SET total=%s WHERE shop_order.id = %s  -- 7, 1
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, limit 10 ------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s FOR UPDATE OF shop_order  -- 10
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate|SkipLocked, limit 10 -------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s FOR UPDATE OF shop_order SKIP LOCKED  -- 10
(rollback)
(back to the pool)
(rollback)

-- entity_set SharedRead|SkipLocked, limit 10 ------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %s FOR SHARE OF shop_order SKIP LOCKED  -- 10
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, joined inheritance --------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_contract
SELECT shop_lease.id
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id FOR UPDATE OF shop_contract
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.id IN (%s)  -- 1
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, no parameters, lock_timeout 0.3 -------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT /*+ MAX_EXECUTION_TIME(300) */ shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FOR UPDATE OF shop_order
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, a join, lock_timeout 0.3 --------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT /*+ MAX_EXECUTION_TIME(300) */ shop_order.id
FROM shop_order INNER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %s FOR UPDATE OF shop_order  -- 0
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %s AND shop_order.id IN (%s)  -- 0, 1
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, names and texts in quotes, lock_timeout 0.3 -------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE books.`Journal of Group`
SELECT /*+ MAX_EXECUTION_TIME(300) */ books.`Journal of Group`.`Key`, books.`Journal of Group`.`order`, books.`Journal of Group`.`Name`
FROM books.`Journal of Group`
WHERE books.`Journal of Group`.`Name` = 'it''s' FOR UPDATE OF `Journal of Group`
(rollback)
(back to the pool)
(rollback)

-- with_lock ForUpdate, a join ---------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id
FROM shop_order INNER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %s FOR UPDATE OF shop_order  -- 0
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order INNER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %s AND shop_order.id IN (%s)  -- 0, 1
(rollback)
(back to the pool)
(rollback)

-- after a plain read, ForUpdate -------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %s  -- 1
-- raises WrongIsolation
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SharedRead ------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %s  -- 1
-- raises WrongIsolation
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SharedRead|NoWait -----------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %s  -- 1
-- raises WrongIsolation
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SnapshotRead ----------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %s  -- 1
-- raises WrongIsolation
(rollback)
(back to the pool)
(rollback)

-- ForUpdate, then another in a savepoint ----------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 1
SAVEPOINT sa_savepoint_1
SHOW CREATE TABLE shop_invoice
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %s FOR UPDATE OF shop_invoice  -- 1
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id IN (%s)  -- 1
RELEASE SAVEPOINT sa_savepoint_1
(commit)
(back to the pool)
(rollback)

-- begin, savepoint, ForUpdate ---------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SAVEPOINT sa_savepoint_1
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 1
RELEASE SAVEPOINT sa_savepoint_1
(commit)
(back to the pool)
(rollback)

-- get_entities ForUpdate --------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, lock_timeout 0.3 --------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT /*+ MAX_EXECUTION_TIME(300) */ shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate|SkipLocked ---------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s) ORDER BY shop_order.id FOR UPDATE OF shop_order SKIP LOCKED  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities SharedRead -------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s, %s) ORDER BY shop_order.id FOR SHARE OF shop_order  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities NoLock -----------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%s, %s) ORDER BY shop_order.id  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, composite key -----------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_voucher
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher FORCE INDEX (PRIMARY)
WHERE shop_voucher.year = %s AND shop_voucher.number = %s OR shop_voucher.year = %s AND shop_voucher.number = %s ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE OF shop_voucher  -- 1, 1, 2, 1
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, joined inheritance ------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_contract
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract FORCE INDEX (PRIMARY)
WHERE shop_contract.id IN (%s, %s) ORDER BY shop_contract.id FOR UPDATE OF shop_contract  -- 1, 2
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract INNER JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id IN (%s) ORDER BY shop_contract.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, one is held already -----------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FORCE INDEX (PRIMARY)
WHERE shop_order.id IN (%s) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 2
(rollback)
(back to the pool)
(rollback)

-- after a plain read, get_entities SharedRead -----------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %s  -- 1
-- raises WrongIsolation
(rollback)
(back to the pool)
(rollback)

-- get_document ForUpdate --------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_delivery
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %s FOR UPDATE OF shop_delivery  -- 1
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %s ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label INNER JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %s ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box INNER JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %s ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_document SnapshotRead -----------------------------------------------------------------------
START TRANSACTION READ ONLY
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %s  -- 1
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %s ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label INNER JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %s ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box INNER JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %s ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_document NoLock -----------------------------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %s  -- 1
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %s ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label INNER JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %s ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box INNER JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %s ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_documents ForUpdate -------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_delivery
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery FORCE INDEX (PRIMARY)
WHERE shop_delivery.id IN (%s, %s) ORDER BY shop_delivery.id FOR UPDATE OF shop_delivery  -- 1, 2
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %s ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label INNER JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %s ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box INNER JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %s ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_documents SnapshotRead ----------------------------------------------------------------------
START TRANSACTION READ ONLY
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id IN (%s, %s) ORDER BY shop_delivery.id  -- 1, 2
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %s ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label INNER JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %s ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box INNER JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %s ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- guard, UPDATE of headers ------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_delivery
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %s FOR UPDATE OF shop_delivery  -- 1
SELECT shop_delivery.id, count(*) AS count_1
FROM shop_delivery GROUP BY shop_delivery.id
UPDATE shop_delivery SET total=%s  -- 7
(rollback)
(back to the pool)
(rollback)

-- guard, UPDATE and DELETE of parts ---------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_delivery
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %s FOR UPDATE OF shop_delivery  -- 1
SELECT shop_box.delivery_id, count(*) AS count_1
FROM shop_box
WHERE shop_box.id > %s GROUP BY shop_box.delivery_id  -- 0
UPDATE shop_box SET delivery_id=%s WHERE shop_box.id > %s  -- 1, 0
SELECT shop_box.delivery_id, count(*) AS count_1
FROM shop_box
WHERE shop_box.delivery_id = %s GROUP BY shop_box.delivery_id  -- 1
DELETE FROM shop_box WHERE shop_box.delivery_id = %s  -- 1
(rollback)
(back to the pool)
(rollback)

-- guard, UPDATE and DELETE of parts of parts ------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_delivery
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %s FOR UPDATE OF shop_delivery  -- 1
SELECT shop_item.box_id, count(*) AS count_1
FROM shop_item
WHERE shop_item.box_id = %s GROUP BY shop_item.box_id  -- 1
SELECT shop_box_1.id, shop_delivery_1.id AS id_1
FROM shop_delivery AS shop_delivery_1 INNER JOIN shop_box AS shop_box_1 ON shop_delivery_1.id = shop_box_1.delivery_id
WHERE shop_box_1.id IN (%s)  -- 1
UPDATE shop_item SET name=%s WHERE shop_item.box_id = %s  -- 'b', 1
SELECT shop_item.box_id, count(*) AS count_1
FROM shop_item GROUP BY shop_item.box_id
SELECT shop_box_1.id, shop_delivery_1.id AS id_1
FROM shop_delivery AS shop_delivery_1 INNER JOIN shop_box AS shop_box_1 ON shop_delivery_1.id = shop_box_1.delivery_id
WHERE shop_box_1.id IN (%s)  -- 1
DELETE FROM shop_item
(rollback)
(back to the pool)
(rollback)

-- guard, DELETE without a lock --------------------------------------------------------------------
SELECT shop_box.delivery_id, count(*) AS count_1
FROM shop_box
WHERE shop_box.id > %s GROUP BY shop_box.delivery_id  -- 5
-- raises UnlockedWrite
(rollback)
(back to the pool)
(rollback)

-- guard, a part of a part that is changed ---------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_delivery
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %s FOR UPDATE OF shop_delivery  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name
FROM shop_item
WHERE shop_item.id = %s  -- 1
SELECT shop_box_1.id, shop_delivery_1.id AS id_1
FROM shop_delivery AS shop_delivery_1 INNER JOIN shop_box AS shop_box_1 ON shop_delivery_1.id = shop_box_1.delivery_id
WHERE shop_box_1.id IN (%s)  -- 1
UPDATE shop_item SET name=%s WHERE shop_item.id = %s  -- 'b', 1
(commit)
(back to the pool)
(rollback)

-- lock_key ----------------------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SELECT GET_LOCK(%s, @@innodb_lock_wait_timeout)  -- 'shop.user:42'
(rollback)
DO RELEASE_LOCK('shop.user:42')
(back to the pool)
(rollback)

-- lock_key shared ---------------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SELECT GET_LOCK(%s, @@innodb_lock_wait_timeout)  -- 'shop.user:42'
(rollback)
DO RELEASE_LOCK('shop.user:42')
(back to the pool)
(rollback)

-- lock_key, lock_timeout 0 ------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SELECT GET_LOCK(%s, 0)  -- 'shop.user:42'
(rollback)
DO RELEASE_LOCK('shop.user:42')
(back to the pool)
(rollback)

-- lock_key shared, lock_timeout 0 -----------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SELECT GET_LOCK(%s, 0)  -- 'shop.user:42'
(rollback)
DO RELEASE_LOCK('shop.user:42')
(back to the pool)
(rollback)

-- lock_key, lock_timeout 0.3 ----------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SELECT /*+ MAX_EXECUTION_TIME(300) */ GET_LOCK(%s, 1)  -- 'shop.user:42'
(rollback)
DO RELEASE_LOCK('shop.user:42')
(back to the pool)
(rollback)

-- lock_key, lock_timeout 5 ------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SELECT GET_LOCK(%s, 5)  -- 'shop.user:42'
(rollback)
DO RELEASE_LOCK('shop.user:42')
(back to the pool)
(rollback)

-- lock_key of two, twice --------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SELECT GET_LOCK(%s, @@innodb_lock_wait_timeout)  -- 'shop.user:42'
SELECT GET_LOCK(%s, @@innodb_lock_wait_timeout)  -- 'shop._o__s_own#c366db42f19989c93b28e3d65cc39d97'
(commit)
DO RELEASE_LOCK('shop._o__s_own#c366db42f19989c93b28e3d65cc39d97')
DO RELEASE_LOCK('shop.user:42')
(back to the pool)
(rollback)

-- lock_key, then locked ---------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SELECT GET_LOCK(%s, @@innodb_lock_wait_timeout)  -- 'shop.user:42'
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order  -- 1
UPDATE shop_order SET total=%s WHERE shop_order.id = %s  -- 6, 1
(commit)
DO RELEASE_LOCK('shop.user:42')
(back to the pool)
(rollback)

-- after a plain read, lock_key --------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %s  -- 1
-- raises WrongIsolation
(rollback)
(back to the pool)
(rollback)

-- claim_each --------------------------------------------------------------------------------------
SHOW FULL TABLES FROM `shop`
(rollback)
(back to the pool)
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > %s ORDER BY shop_order.id
LIMIT %s  -- 0, 101
(commit)
(back to the pool)
(rollback)
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %s AND shop_order.id = %s FOR UPDATE OF shop_order SKIP LOCKED  -- 0, 1
UPDATE shop_order SET total=%s WHERE shop_order.id = %s  -- 7, 1
(commit)
(back to the pool)
(rollback)

-- claim_each in batches ---------------------------------------------------------------------------
SHOW FULL TABLES FROM `shop`
(rollback)
(back to the pool)
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > %s ORDER BY shop_order.id
LIMIT %s  -- 0, 101
(commit)
(back to the pool)
(rollback)
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %s AND shop_order.id = %s FOR UPDATE OF shop_order SKIP LOCKED  -- 0, 1
SAVEPOINT sa_savepoint_1
UPDATE shop_order SET total=%s WHERE shop_order.id = %s  -- 7, 1
RELEASE SAVEPOINT sa_savepoint_1
(commit)
(back to the pool)
(rollback)

-- batch session, ForUpdate ------------------------------------------------------------------------
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SAVEPOINT sa_savepoint_1
SHOW CREATE TABLE shop_order
SELECT /*+ MAX_EXECUTION_TIME(60000) */ shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE OF shop_order NOWAIT  -- 1
RELEASE SAVEPOINT sa_savepoint_1
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of the program ----------------------------------------------------------------
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(nowait=True) of the program -----------------------------------------------------
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE NOWAIT  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(skip_locked=True) of the program ------------------------------------------------
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE SKIP LOCKED  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(read=True) of the program -------------------------------------------------------
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR SHARE  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(key_share=True) of the program --------------------------------------------------
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(read=True, key_share=True) of the program ---------------------------------------
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR SHARE  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of a table --------------------------------------------------------------------
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of an alias, a join -----------------------------------------------------------
SHOW CREATE TABLE shop_order
SHOW CREATE TABLE shop_line
SELECT o.id
FROM shop_order AS o INNER JOIN shop_line ON shop_line.order_id = o.id FOR UPDATE
(rollback)
(back to the pool)
(rollback)

-- with_for_update(of=) of a join of tables --------------------------------------------------------
SHOW CREATE TABLE shop_order
SELECT shop_order.id
FROM shop_order INNER JOIN shop_line ON shop_line.order_id = shop_order.id FOR UPDATE OF shop_order
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of a literal ------------------------------------------------------------------
SHOW CREATE TABLE shop_order
SELECT %s AS anon_1
FROM shop_order FOR UPDATE  -- 1
(rollback)
(back to the pool)
(rollback)

-- get(with_for_update=True) of the program --------------------------------------------------------
SHOW CREATE TABLE shop_order
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %s FOR UPDATE  -- 1
(rollback)
(back to the pool)
(rollback)
