-- get_entity ForUpdate ----------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate|NoWait ---------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order NOWAIT  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, lock_timeout 0.3 ----------------------------------------------------------
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '300ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead ---------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR SHARE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead, lock_timeout 0.3 ---------------------------------------------------------
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '300ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR SHARE OF shop_order  -- 1
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)

-- get_entity SnapshotRead -------------------------------------------------------------------------
(isolation level REPEATABLE_READ)
SET TRANSACTION READ ONLY
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER  -- 1
(rollback)
(back to the pool)
(rollback)
(isolation level READ_COMMITTED)

-- get_entity NoLock -------------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_1)s::INTEGER  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate of a missing row -----------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 99
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 99
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate of the same twice ----------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, mapped lazy='joined' ------------------------------------------------------
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_invoice  -- 1
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id IN (%(primary_keys_1)s::INTEGER)  -- 1
(rollback)
(back to the pool)
(rollback)

-- locked, changes ---------------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
SELECT shop_line.id, shop_line.order_id, shop_line.value
FROM shop_line
WHERE %(param_1)s::INTEGER = shop_line.order_id  -- 1
UPDATE shop_order SET total=%(total)s::INTEGER WHERE shop_order.id = %(shop_order_id)s::INTEGER  -- 7, 1
(commit)
(back to the pool)
(rollback)

-- locked, changes to joined inheritance, lock_timeout 0.3 -----------------------------------------
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '300ms'
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_contract  -- 1
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = %(pk_0)s::INTEGER  -- 1
UPDATE shop_contract SET total=%(total)s::INTEGER WHERE shop_contract.id = %(shop_contract_id)s::INTEGER  -- 7, 1
UPDATE shop_lease SET rent=%(rent)s::INTEGER WHERE shop_lease.id = %(shop_lease_id)s::INTEGER  -- 8, 1
(commit)
(back to the pool)
(rollback)

-- locked, left by an exception --------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
UPDATE shop_order SET total=%(total)s::INTEGER WHERE shop_order.id = %(shop_order_id)s::INTEGER  -- 7, 1
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, limit 10 ------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF shop_order  -- 10
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate|SkipLocked, limit 10 -------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF shop_order SKIP LOCKED  -- 10
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, joined inheritance --------------------------------------------------------
SELECT shop_lease.id
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id FOR UPDATE OF shop_contract
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.id IN (%(id_2_1)s::INTEGER)  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_lock ForUpdate, a join ---------------------------------------------------------------------
SELECT shop_order.id
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %(value_1)s::INTEGER FOR UPDATE OF shop_order  -- 0
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %(value_1)s::INTEGER AND shop_order.id IN (%(id_1_1)s::INTEGER)  -- 0, 1
(rollback)
(back to the pool)
(rollback)

-- after a plain read, ForUpdate -------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %(pk_1)s::INTEGER  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SharedRead ------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %(pk_1)s::INTEGER  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR SHARE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SharedRead|NoWait -----------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %(pk_1)s::INTEGER  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR SHARE OF shop_order NOWAIT  -- 1
(rollback)
(back to the pool)
(rollback)

-- after a plain read, SnapshotRead ----------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %(pk_1)s::INTEGER  -- 1
-- raises WrongIsolation
(rollback)
(back to the pool)
(rollback)

-- ForUpdate, then another in a savepoint ----------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
SAVEPOINT sa_savepoint_1
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_invoice  -- 1
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id IN (%(primary_keys_1)s::INTEGER)  -- 1
RELEASE SAVEPOINT sa_savepoint_1
(commit)
(back to the pool)
(rollback)

-- begin, savepoint, ForUpdate ---------------------------------------------------------------------
SAVEPOINT sa_savepoint_1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
RELEASE SAVEPOINT sa_savepoint_1
(commit)
(back to the pool)
(rollback)

-- get_entities ForUpdate --------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 1, 2
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 2
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, lock_timeout 0.3 --------------------------------------------------------
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '300ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 1, 2
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '300ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 2
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate|SkipLocked ---------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order SKIP LOCKED  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities SharedRead -------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_order.id FOR SHARE OF shop_order  -- 1, 2
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR SHARE OF shop_order  -- 2
(rollback)
(back to the pool)
(rollback)

-- get_entities NoLock -----------------------------------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_order.id  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, composite key -----------------------------------------------------------
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number = %(number_2)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE OF shop_voucher  -- 1, 1, 2, 1
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE OF shop_voucher  -- 2, 1
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, joined inheritance ------------------------------------------------------
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_contract.id FOR UPDATE OF shop_contract  -- 1, 2
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id IN (%(keys_1)s::INTEGER) ORDER BY shop_contract.id  -- 1
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (%(keys_1)s::INTEGER) ORDER BY shop_contract.id FOR UPDATE OF shop_contract  -- 2
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id IN (%(keys_1)s::INTEGER) ORDER BY shop_contract.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, one is held already -----------------------------------------------------
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 2
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 2
(rollback)
(back to the pool)
(rollback)

-- after a plain read, get_entities SharedRead -----------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %(pk_1)s::INTEGER  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_order.id FOR SHARE OF shop_order  -- 1, 2
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR SHARE OF shop_order  -- 2
(rollback)
(back to the pool)
(rollback)

-- get_document ForUpdate --------------------------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_delivery  -- 1
SELECT shop_box.id, shop_box.delivery_id, shop_box.delivery_id AS delivery_id__1
FROM shop_box
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_box.id  -- 1
SELECT shop_label.id, shop_delivery_label.delivery_id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_document SnapshotRead -----------------------------------------------------------------------
(isolation level REPEATABLE_READ)
SET TRANSACTION READ ONLY
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %(pk_0)s::INTEGER  -- 1
SELECT shop_box.id, shop_box.delivery_id, shop_box.delivery_id AS delivery_id__1
FROM shop_box
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_box.id  -- 1
SELECT shop_label.id, shop_delivery_label.delivery_id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)
(isolation level READ_COMMITTED)

-- get_document NoLock -----------------------------------------------------------------------------
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %(pk_1)s::INTEGER  -- 1
SELECT shop_box.id, shop_box.delivery_id, shop_box.delivery_id AS delivery_id__1
FROM shop_box
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_box.id  -- 1
SELECT shop_label.id, shop_delivery_label.delivery_id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- lock_key ----------------------------------------------------------------------------------------
SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0)) WHERE NOT pg_is_in_recovery()  -- 'user:42'
(rollback)
(back to the pool)
(rollback)

-- lock_key shared ---------------------------------------------------------------------------------
SELECT pg_advisory_xact_lock_shared(hashtextextended(%(key)s, 0)) WHERE NOT pg_is_in_recovery()  -- 'user:42'
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 0 ------------------------------------------------------------------------
SELECT pg_try_advisory_xact_lock(hashtextextended(%(key)s, 0)) WHERE NOT pg_is_in_recovery()  -- 'user:42'
(rollback)
(back to the pool)
(rollback)

-- lock_key shared, lock_timeout 0 -----------------------------------------------------------------
SELECT pg_try_advisory_xact_lock_shared(hashtextextended(%(key)s, 0)) WHERE NOT pg_is_in_recovery()  -- 'user:42'
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 0.3 ----------------------------------------------------------------------
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '300ms'
SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0)) WHERE NOT pg_is_in_recovery()  -- 'user:42'
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 5 ------------------------------------------------------------------------
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '5000ms'
SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0)) WHERE NOT pg_is_in_recovery()  -- 'user:42'
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)

-- lock_key of two, twice --------------------------------------------------------------------------
SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0)) WHERE NOT pg_is_in_recovery()  -- 'user:42'
SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0)) WHERE NOT pg_is_in_recovery()  -- "Zoë's own"
(commit)
(back to the pool)
(rollback)

-- lock_key, then locked ---------------------------------------------------------------------------
SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0)) WHERE NOT pg_is_in_recovery()  -- 'user:42'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
UPDATE shop_order SET total=%(total)s::INTEGER WHERE shop_order.id = %(shop_order_id)s::INTEGER  -- 6, 1
(commit)
(back to the pool)
(rollback)

-- after a plain read, lock_key --------------------------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %(pk_1)s::INTEGER  -- 1
SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0)) WHERE NOT pg_is_in_recovery()  -- 'user:42'
(rollback)
(back to the pool)
(rollback)
