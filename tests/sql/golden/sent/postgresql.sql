-- postgresql: what a session tells the driver, call by call.  Parameters stand behind their statement, what
-- the driver does by a method is in parentheses.  A limit to the wait that is in no compiled text is
-- here.

-- get_entity ForUpdate ----------------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate|NoWait ---------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order NOWAIT  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, lock_timeout 0.3 ----------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true), set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval BETWEEN '0.001 s' AND %s THEN current_setting('statement_timeout') ELSE %s END, true)  -- '300ms', '330ms', '330ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true), set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, composite key, lock_timeout 0.3 -------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_voucher'
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true), set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval BETWEEN '0.001 s' AND %s THEN current_setting('statement_timeout') ELSE %s END, true)  -- '300ms', '330ms', '330ms'
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(pk_0)s::INTEGER AND shop_voucher.number = %(pk_1)s::INTEGER FOR UPDATE OF shop_voucher  -- 1, 1
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true), set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, schema and quoted names ---------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'books."Journal of Group"'
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" = %(pk_0)s::INTEGER FOR UPDATE OF "Journal of Group"  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate|NoWait, joined inheritance -------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_contract'
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_contract NOWAIT  -- 1
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = %(pk_0)s::INTEGER  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead ---------------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR SHARE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead, joined inheritance -------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_contract'
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %(pk_0)s::INTEGER FOR SHARE OF shop_contract  -- 1
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_contract.id = %(pk_0)s::INTEGER  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead|NoWait --------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR SHARE OF shop_order NOWAIT  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity SharedRead, lock_timeout 0.3 ---------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true), set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval BETWEEN '0.001 s' AND %s THEN current_setting('statement_timeout') ELSE %s END, true)  -- '300ms', '330ms', '330ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR SHARE OF shop_order  -- 1
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true), set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)
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
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 99
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 99
SELECT relrowsecurity OR relkind = 'v' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(rollback)
(back to the pool)
(rollback)

-- get_or_create_entity of a missing row -----------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true), set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval BETWEEN '0.001 s' AND %s THEN current_setting('statement_timeout') ELSE %s END, true)  -- '2000ms', '2030ms', '2030ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 99
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true), set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)
(end of pipeline)
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true), set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval BETWEEN '0.001 s' AND %s THEN current_setting('statement_timeout') ELSE %s END, true)  -- '2000ms', '2030ms', '2030ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 99
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true), set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)
(end of pipeline)
SELECT relrowsecurity OR relkind = 'v' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %(lock)s, true)  -- '2000ms'
SAVEPOINT sa_savepoint_1
INSERT INTO shop_order (id, customer_id, total) VALUES (%(id)s::INTEGER, %(customer_id)s::INTEGER, %(total)s::INTEGER)  -- 99, 1, 0
RELEASE SAVEPOINT sa_savepoint_1
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true), set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval BETWEEN '0.001 s' AND %s THEN current_setting('statement_timeout') ELSE %s END, true)  -- '2000ms', '2030ms', '2030ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 99
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true), set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)
(end of pipeline)
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true), set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval BETWEEN '0.001 s' AND %s THEN current_setting('statement_timeout') ELSE %s END, true)  -- '2000ms', '2030ms', '2030ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 99
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true), set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)
-- raises LockMisuse

-- get_or_create_entity of a missing row, by a unique key ------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_ticket'
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '2000ms'
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.severity = %(severity_1)s::INTEGER AND shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) FOR UPDATE OF shop_ticket  -- 99, 'fault'
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %(lock)s, true)  -- '2000ms'
SAVEPOINT sa_savepoint_1
INSERT INTO shop_ticket (id, kind, total, severity) VALUES (%(id)s::INTEGER, %(kind)s::VARCHAR, %(total)s::INTEGER, %(severity)s::INTEGER)  -- 99, 'fault', 0, 99
RELEASE SAVEPOINT sa_savepoint_1
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '2000ms'
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.severity = %(severity_1)s::INTEGER AND shop_ticket.kind IN (%(kind_1_1)s::VARCHAR) FOR UPDATE OF shop_ticket  -- 99, 'fault'
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)
-- raises LockMisuse

-- get_entity ForUpdate of the same twice ----------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_entity ForUpdate, mapped lazy='joined' ------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_invoice'
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
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
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
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_contract'
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true), set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval BETWEEN '0.001 s' AND %s THEN current_setting('statement_timeout') ELSE %s END, true)  -- '300ms', '330ms', '330ms'
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_contract  -- 1
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true), set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)
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
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
UPDATE shop_order SET total=%(total)s::INTEGER WHERE shop_order.id = %(shop_order_id)s::INTEGER  -- 7, 1
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, limit 10 ------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF shop_order  -- 10
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate|SkipLocked, limit 10 -------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER FOR UPDATE OF shop_order SKIP LOCKED  -- 10
(rollback)
(back to the pool)
(rollback)

-- entity_set SharedRead|SkipLocked, limit 10 ------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER FOR SHARE OF shop_order SKIP LOCKED  -- 10
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, joined inheritance --------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_contract'
SELECT shop_lease.id
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id FOR UPDATE OF shop_contract
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.id IN (%(id_2_1)s::INTEGER)  -- 1
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, no parameters, lock_timeout 0.3 -------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '300ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order FOR UPDATE OF shop_order
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, a join, lock_timeout 0.3 --------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '300ms'
SELECT shop_order.id
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %(value_1)s::INTEGER FOR UPDATE OF shop_order  -- 0
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > %(value_1)s::INTEGER AND shop_order.id IN (%(id_1_1)s::INTEGER)  -- 0, 1
(rollback)
(back to the pool)
(rollback)

-- entity_set ForUpdate, names and texts in quotes, lock_timeout 0.3 -------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'books."Journal of Group"'
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '300ms'
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Name" = 'it''s' FOR UPDATE OF "Journal of Group"
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)

-- with_lock ForUpdate, a join ---------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
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
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
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
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
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
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
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
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
SAVEPOINT sa_savepoint_1
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_invoice'
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
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
RELEASE SAVEPOINT sa_savepoint_1
(commit)
(back to the pool)
(rollback)

-- get_entities ForUpdate --------------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 1, 2
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 2
SELECT relrowsecurity OR relkind = 'v' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, lock_timeout 0.3 --------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true), set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval BETWEEN '0.001 s' AND %s THEN current_setting('statement_timeout') ELSE %s END, true)  -- '300ms', '330ms', '330ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 1, 2
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true), set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)
(end of pipeline)
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true), set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval BETWEEN '0.001 s' AND %s THEN current_setting('statement_timeout') ELSE %s END, true)  -- '300ms', '330ms', '330ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 2
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true), set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)
(end of pipeline)
SELECT relrowsecurity OR relkind = 'v' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate|SkipLocked ---------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order SKIP LOCKED  -- 1, 2
(rollback)
(back to the pool)
(rollback)

-- get_entities SharedRead -------------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_order.id FOR SHARE OF shop_order  -- 1, 2
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR SHARE OF shop_order  -- 2
SELECT relrowsecurity OR relkind = 'v' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
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
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_voucher'
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER OR shop_voucher.year = %(year_2)s::INTEGER AND shop_voucher.number = %(number_2)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE OF shop_voucher  -- 1, 1, 2, 1
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = %(year_1)s::INTEGER AND shop_voucher.number = %(number_1)s::INTEGER ORDER BY shop_voucher.year, shop_voucher.number FOR UPDATE OF shop_voucher  -- 2, 1
SELECT relrowsecurity OR relkind = 'v' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_voucher'
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, joined inheritance ------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_contract'
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
SELECT relrowsecurity OR relkind = 'v' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_contract'
(rollback)
(back to the pool)
(rollback)

-- get_entities ForUpdate, one is held already -----------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order  -- 1
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 2
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR UPDATE OF shop_order  -- 2
SELECT relrowsecurity OR relkind = 'v' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(rollback)
(back to the pool)
(rollback)

-- after a plain read, get_entities SharedRead -----------------------------------------------------
SELECT shop_customer.id, shop_customer.name
FROM shop_customer
WHERE shop_customer.id = %(pk_1)s::INTEGER  -- 1
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_order.id FOR SHARE OF shop_order  -- 1, 2
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (%(keys_1)s::INTEGER) ORDER BY shop_order.id FOR SHARE OF shop_order  -- 2
SELECT relrowsecurity OR relkind = 'v' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(rollback)
(back to the pool)
(rollback)

-- get_document ForUpdate --------------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_delivery'
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_delivery  -- 1
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
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
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
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
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_documents ForUpdate -------------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_delivery'
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_delivery.id FOR UPDATE OF shop_delivery  -- 1, 2
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id IN (%(keys_1)s::INTEGER) ORDER BY shop_delivery.id FOR UPDATE OF shop_delivery  -- 2
SELECT relrowsecurity OR relkind = 'v' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_delivery'
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)

-- get_documents SnapshotRead ----------------------------------------------------------------------
(isolation level REPEATABLE_READ)
SET TRANSACTION READ ONLY
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id IN (%(keys_1)s::INTEGER, %(keys_2)s::INTEGER) ORDER BY shop_delivery.id  -- 1, 2
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id IN (%(keys_1)s::INTEGER) ORDER BY shop_delivery.id  -- 2
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_box.id  -- 1
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_label.id  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = %(pk_0)s::INTEGER ORDER BY shop_item.id  -- 1
(rollback)
(back to the pool)
(rollback)
(isolation level READ_COMMITTED)

-- guard, UPDATE of headers ------------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_delivery'
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_delivery  -- 1
SELECT shop_delivery.id, count(*) AS count_1
FROM shop_delivery GROUP BY shop_delivery.id
UPDATE shop_delivery SET total=%(total)s::INTEGER  -- 7
(rollback)
(back to the pool)
(rollback)

-- guard, UPDATE and DELETE of parts ---------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_delivery'
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_delivery  -- 1
SELECT shop_box.delivery_id, count(*) AS count_1
FROM shop_box
WHERE shop_box.id > %(id_1)s::INTEGER GROUP BY shop_box.delivery_id  -- 0
UPDATE shop_box SET delivery_id=%(delivery_id)s::INTEGER WHERE shop_box.id > %(id_1)s::INTEGER  -- 1, 0
SELECT shop_box.delivery_id, count(*) AS count_1
FROM shop_box
WHERE shop_box.delivery_id = %(delivery_id_1)s::INTEGER GROUP BY shop_box.delivery_id  -- 1
DELETE FROM shop_box WHERE shop_box.delivery_id = %(delivery_id_1)s::INTEGER  -- 1
(rollback)
(back to the pool)
(rollback)

-- guard, UPDATE and DELETE of parts of parts ------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_delivery'
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_delivery  -- 1
SELECT shop_item.box_id, count(*) AS count_1
FROM shop_item
WHERE shop_item.box_id = %(box_id_1)s::INTEGER GROUP BY shop_item.box_id  -- 1
SELECT shop_box_1.id, shop_delivery_1.id AS id_1
FROM shop_delivery AS shop_delivery_1 JOIN shop_box AS shop_box_1 ON shop_delivery_1.id = shop_box_1.delivery_id
WHERE shop_box_1.id IN (%(id_2_1)s::INTEGER)  -- 1
UPDATE shop_item SET name=%(name)s::VARCHAR WHERE shop_item.box_id = %(box_id_1)s::INTEGER  -- 'b', 1
SELECT shop_item.box_id, count(*) AS count_1
FROM shop_item GROUP BY shop_item.box_id
SELECT shop_box_1.id, shop_delivery_1.id AS id_1
FROM shop_delivery AS shop_delivery_1 JOIN shop_box AS shop_box_1 ON shop_delivery_1.id = shop_box_1.delivery_id
WHERE shop_box_1.id IN (%(id_2_1)s::INTEGER)  -- 1
DELETE FROM shop_item
(rollback)
(back to the pool)
(rollback)

-- guard, DELETE without a lock --------------------------------------------------------------------
SELECT shop_box.delivery_id, count(*) AS count_1
FROM shop_box
WHERE shop_box.id > %(id_1)s::INTEGER GROUP BY shop_box.delivery_id  -- 5
-- raises UnlockedWrite
(rollback)
(back to the pool)
(rollback)

-- guard, a part of a part that is changed ---------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_delivery'
SELECT shop_delivery.id, shop_delivery.total
FROM shop_delivery
WHERE shop_delivery.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_delivery  -- 1
SELECT shop_item.id, shop_item.box_id, shop_item.name
FROM shop_item
WHERE shop_item.id = %(pk_1)s::INTEGER  -- 1
SELECT shop_box_1.id, shop_delivery_1.id AS id_1
FROM shop_delivery AS shop_delivery_1 JOIN shop_box AS shop_box_1 ON shop_delivery_1.id = shop_box_1.delivery_id
WHERE shop_box_1.id IN (%(id_2_1)s::INTEGER)  -- 1
UPDATE shop_item SET name=%(name)s::VARCHAR WHERE shop_item.id = %(shop_item_id)s::INTEGER  -- 'b', 1
(commit)
(back to the pool)
(rollback)

-- lock_key ----------------------------------------------------------------------------------------
SELECT pg_advisory_xact_lock(CAST(%(number)s AS bigint)) WHERE NOT pg_is_in_recovery() /* sa_doclock key: user:42 */  -- -1567300791643570846
(rollback)
(back to the pool)
(rollback)

-- lock_key shared ---------------------------------------------------------------------------------
SELECT pg_advisory_xact_lock_shared(CAST(%(number)s AS bigint)) WHERE NOT pg_is_in_recovery() /* sa_doclock key: user:42 */  -- -1567300791643570846
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 0 ------------------------------------------------------------------------
SELECT pg_try_advisory_xact_lock(CAST(%(number)s AS bigint)) WHERE NOT pg_is_in_recovery()  -- -1567300791643570846
(rollback)
(back to the pool)
(rollback)

-- lock_key shared, lock_timeout 0 -----------------------------------------------------------------
SELECT pg_try_advisory_xact_lock_shared(CAST(%(number)s AS bigint)) WHERE NOT pg_is_in_recovery()  -- -1567300791643570846
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 0.3 ----------------------------------------------------------------------
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '300ms'
SELECT pg_advisory_xact_lock(CAST(%(number)s AS bigint)) WHERE NOT pg_is_in_recovery() /* sa_doclock key: user:42 */  -- -1567300791643570846
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)

-- lock_key, lock_timeout 5 ------------------------------------------------------------------------
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true)  -- '5000ms'
SELECT pg_advisory_xact_lock(CAST(%(number)s AS bigint)) WHERE NOT pg_is_in_recovery() /* sa_doclock key: user:42 */  -- -1567300791643570846
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)
(end of pipeline)
(rollback)
(back to the pool)
(rollback)

-- lock_key of two, twice --------------------------------------------------------------------------
SELECT pg_advisory_xact_lock(CAST(%(number)s AS bigint)) WHERE NOT pg_is_in_recovery() /* sa_doclock key: user:42 */  -- -1567300791643570846
SELECT pg_advisory_xact_lock(CAST(%(number)s AS bigint)) WHERE NOT pg_is_in_recovery() /* sa_doclock key: Zoë_s own */  -- 253199362485649694
(commit)
(back to the pool)
(rollback)

-- lock_key, then locked ---------------------------------------------------------------------------
SELECT pg_advisory_xact_lock(CAST(%(number)s AS bigint)) WHERE NOT pg_is_in_recovery() /* sa_doclock key: user:42 */  -- -1567300791643570846
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
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
SELECT pg_advisory_xact_lock(CAST(%(number)s AS bigint)) WHERE NOT pg_is_in_recovery() /* sa_doclock key: user:42 */  -- -1567300791643570846
(rollback)
(back to the pool)
(rollback)

-- claim_each --------------------------------------------------------------------------------------
SELECT pg_catalog.pg_class.relname
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
WHERE pg_catalog.pg_class.relkind = ANY (ARRAY[%(param_1)s::VARCHAR]) AND pg_catalog.pg_class.relpersistence != %(relpersistence_1)s::VARCHAR AND pg_catalog.pg_table_is_visible(pg_catalog.pg_class.oid) AND pg_catalog.pg_namespace.nspname != %(nspname_1)s::VARCHAR  -- 'v', 't', 'pg_catalog'
SELECT pg_catalog.pg_class.relname
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
WHERE pg_catalog.pg_class.relkind = ANY (ARRAY[%(param_1)s::VARCHAR]) AND pg_catalog.pg_class.relpersistence != %(relpersistence_1)s::VARCHAR AND pg_catalog.pg_table_is_visible(pg_catalog.pg_class.oid) AND pg_catalog.pg_namespace.nspname != %(nspname_1)s::VARCHAR  -- 'm', 't', 'pg_catalog'
(rollback)
(back to the pool)
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER  -- 0, 101
(commit)
(back to the pool)
(rollback)
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER AND shop_order.id = %(doclock_key_0)s::INTEGER FOR UPDATE OF shop_order SKIP LOCKED  -- 0, 1
UPDATE shop_order SET total=%(total)s::INTEGER WHERE shop_order.id = %(shop_order_id)s::INTEGER  -- 7, 1
(commit)
(back to the pool)
(rollback)

-- claim_each in batches ---------------------------------------------------------------------------
SELECT pg_catalog.pg_class.relname
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
WHERE pg_catalog.pg_class.relkind = ANY (ARRAY[%(param_1)s::VARCHAR]) AND pg_catalog.pg_class.relpersistence != %(relpersistence_1)s::VARCHAR AND pg_catalog.pg_table_is_visible(pg_catalog.pg_class.oid) AND pg_catalog.pg_namespace.nspname != %(nspname_1)s::VARCHAR  -- 'v', 't', 'pg_catalog'
SELECT pg_catalog.pg_class.relname
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
WHERE pg_catalog.pg_class.relkind = ANY (ARRAY[%(param_1)s::VARCHAR]) AND pg_catalog.pg_class.relpersistence != %(relpersistence_1)s::VARCHAR AND pg_catalog.pg_table_is_visible(pg_catalog.pg_class.oid) AND pg_catalog.pg_namespace.nspname != %(nspname_1)s::VARCHAR  -- 'm', 't', 'pg_catalog'
(rollback)
(back to the pool)
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER ORDER BY shop_order.id
LIMIT %(param_1)s::INTEGER  -- 0, 101
(commit)
(back to the pool)
(rollback)
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > %(total_1)s::INTEGER AND shop_order.id = %(doclock_key_0)s::INTEGER FOR UPDATE OF shop_order SKIP LOCKED  -- 0, 1
SAVEPOINT sa_savepoint_1
UPDATE shop_order SET total=%(total)s::INTEGER WHERE shop_order.id = %(shop_order_id)s::INTEGER  -- 7, 1
RELEASE SAVEPOINT sa_savepoint_1
(commit)
(back to the pool)
(rollback)

-- batch session, ForUpdate ------------------------------------------------------------------------
SAVEPOINT sa_savepoint_1
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
(pipeline)
SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', %s, true), set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval BETWEEN '0.001 s' AND %s THEN current_setting('statement_timeout') ELSE %s END, true)  -- '60000ms', '60030ms', '60030ms'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_0)s::INTEGER FOR UPDATE OF shop_order NOWAIT  -- 1
SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true), set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)
(end of pipeline)
RELEASE SAVEPOINT sa_savepoint_1
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of the program ----------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(id_1)s::INTEGER FOR UPDATE  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(nowait=True) of the program -----------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(id_1)s::INTEGER FOR UPDATE NOWAIT  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(skip_locked=True) of the program ------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(id_1)s::INTEGER FOR UPDATE SKIP LOCKED  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(read=True) of the program -------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(id_1)s::INTEGER FOR SHARE  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(key_share=True) of the program --------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(id_1)s::INTEGER FOR NO KEY UPDATE  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update(read=True, key_share=True) of the program ---------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(id_1)s::INTEGER FOR KEY SHARE  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of a table --------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(id_1)s::INTEGER FOR UPDATE  -- 1
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of an alias, a join -----------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_line'
SELECT o.id
FROM shop_order AS o JOIN shop_line ON shop_line.order_id = o.id FOR UPDATE
(rollback)
(back to the pool)
(rollback)

-- with_for_update(of=) of a join of tables --------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id
FROM shop_order JOIN shop_line ON shop_line.order_id = shop_order.id FOR UPDATE OF shop_order
(rollback)
(back to the pool)
(rollback)

-- with_for_update() of a literal ------------------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT %(param_1)s::INTEGER AS anon_1
FROM shop_order FOR UPDATE  -- 1
(rollback)
(back to the pool)
(rollback)

-- get(with_for_update=True) of the program --------------------------------------------------------
SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(CAST(%(name)s AS text))  -- 'shop_order'
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = %(pk_1)s::INTEGER FOR UPDATE  -- 1
(rollback)
(back to the pool)
(rollback)
