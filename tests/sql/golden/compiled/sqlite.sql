-- sqlite: what each kind of select is compiled to.  Above each text stand the locks that have it; on
-- SQL Server and SQLite, a lock that has the text of None_ is in the transaction, not in the text.

-- plain -------------------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order;

-- filtered, in order ------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > ? ORDER BY shop_order.id;

-- limit -------------------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT ? OFFSET ?;

-- limit and offset --------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT ? OFFSET ?;

-- offset ------------------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order ORDER BY shop_order.id
LIMIT ? OFFSET ?;

-- aliased -----------------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o
WHERE o.total > ?;

-- aliased, limit ----------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT ? OFFSET ?;

-- aliased, limit and offset -----------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT o.id, o.customer_id, o.total
FROM shop_order AS o ORDER BY o.id
LIMIT ? OFFSET ?;

-- join --------------------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.value > ?;

-- join with an alias of itself --------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order JOIN shop_order AS other ON shop_order.total < other.total;

-- outer join --------------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order LEFT OUTER JOIN shop_line ON shop_order.id = shop_line.order_id
WHERE shop_line.id IS NULL;

-- EXISTS ------------------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE EXISTS (SELECT 1
FROM shop_line
WHERE shop_order.id = shop_line.order_id AND shop_line.value > ?);

-- IN a subquery -----------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (SELECT shop_line.order_id
FROM shop_line);

-- subquery of its own table -----------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total = (SELECT max(other.total) AS max_1
FROM shop_order AS other);

-- two entities, the first -------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- two entities, the second ------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total, shop_customer.id AS id_1, shop_customer.name
FROM shop_order JOIN shop_customer ON shop_customer.id = shop_order.customer_id;

-- composite key -----------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher;

-- composite key, join -----------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher JOIN shop_voucher_entry ON shop_voucher.year = shop_voucher_entry.year AND shop_voucher.number = shop_voucher_entry.number
WHERE shop_voucher_entry.id > ?;

-- composite key, limit and offset -----------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher ORDER BY shop_voucher.year, shop_voucher.number
LIMIT ? OFFSET ?;

-- schema and quoted names -------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."order" > ?;

-- schema and quoted names, aliased ----------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT j."Key", j."order", j."Name"
FROM books."Journal of Group" AS j
WHERE j."order" > ?;

-- schema and quoted names, limit ------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group" ORDER BY books."Journal of Group"."order"
LIMIT ? OFFSET ?;

-- joined inheritance ------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id;

-- joined inheritance, limit -----------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id ORDER BY shop_lease.id
LIMIT ? OFFSET ?;

-- joined inheritance, its root --------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_contract.id, shop_contract.kind, shop_contract.total
FROM shop_contract;

-- joined inheritance, aliased flat ----------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT rented_shop_lease.id, rented_shop_contract.id AS id_1, rented_shop_contract.kind, rented_shop_contract.total, rented_shop_lease.rent
FROM shop_contract AS rented_shop_contract JOIN shop_lease AS rented_shop_lease ON rented_shop_contract.id = rented_shop_lease.id
WHERE rented_shop_lease.rent > ?;

-- joined inheritance, with_polymorphic ------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_project.id, shop_project.kind, shop_project.total, shop_building.id AS id_1, shop_building.floors
FROM shop_project LEFT OUTER JOIN shop_building ON shop_project.id = shop_building.id;

-- joined inheritance, with_polymorphic, a subclass ------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_building.id, shop_project.id AS id_1, shop_project.kind, shop_project.total, shop_building.floors
FROM shop_project JOIN shop_building ON shop_project.id = shop_building.id;

-- single-table inheritance ------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.kind IN (?);

-- single-table inheritance, its root --------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total
FROM shop_ticket;

-- concrete inheritance ----------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store;

-- mapped lazy='joined' ----------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total, shop_customer_1.id AS id_1, shop_customer_1.name
FROM shop_invoice JOIN shop_customer AS shop_customer_1 ON shop_customer_1.id = shop_invoice.customer_id;

-- SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice;

-- by key, plain -----------------------------------------------------------------------------------
-- SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id = ?;

-- by key, composite -------------------------------------------------------------------------------
-- SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = ? AND shop_voucher.number = ?;

-- by key, schema and quoted names -----------------------------------------------------------------
-- SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" = ?;

-- by key, joined inheritance: the root's row ------------------------------------------------------
-- SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked
SELECT shop_contract.id
FROM shop_contract
WHERE shop_contract.id = ?;

-- by key, joined inheritance, with_polymorphic: the root's row ------------------------------------
-- SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked
SELECT shop_project.id
FROM shop_project
WHERE shop_project.id = ?;

-- by key, single-table inheritance ----------------------------------------------------------------
-- SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id = ? AND shop_ticket.kind IN (__[POSTCOMPILE_kind_1]);

-- by key, concrete inheritance --------------------------------------------------------------------
-- SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked
SELECT shop_cold_store.total, shop_cold_store.id, shop_cold_store.degrees
FROM shop_cold_store
WHERE shop_cold_store.id = ?;

-- by key, mapped lazy='joined' --------------------------------------------------------------------
-- SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id = ?;

-- by keys, plain ----------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.id IN (?, ?, ?) ORDER BY shop_order.id;

-- by keys, composite ------------------------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = ? AND shop_voucher.number = ? OR shop_voucher.year = ? AND shop_voucher.number = ? ORDER BY shop_voucher.year, shop_voucher.number;

-- by keys, schema and quoted names ----------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT books."Journal of Group"."Key", books."Journal of Group"."order", books."Journal of Group"."Name"
FROM books."Journal of Group"
WHERE books."Journal of Group"."Key" IN (?, ?) ORDER BY books."Journal of Group"."Key";

-- by keys, joined inheritance: the root's rows ----------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_contract.id, shop_contract.kind
FROM shop_contract
WHERE shop_contract.id IN (?, ?) ORDER BY shop_contract.id;

-- by keys, single-table inheritance ---------------------------------------------------------------
-- None_, NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_ticket.id, shop_ticket.kind, shop_ticket.total, shop_ticket.severity
FROM shop_ticket
WHERE shop_ticket.id IN (?, ?) AND shop_ticket.kind IN (?) ORDER BY shop_ticket.id;

-- by keys, mapped lazy='joined' -------------------------------------------------------------------
-- None_
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total, shop_customer_1.id AS id_1, shop_customer_1.name
FROM shop_invoice JOIN shop_customer AS shop_customer_1 ON shop_customer_1.id = shop_invoice.customer_id
WHERE shop_invoice.id IN (?, ?) ORDER BY shop_invoice.id;

-- NoLock, SharedRead, SharedRead|NoWait, SharedRead|SkipLocked, ForUpdate, ForUpdate|NoWait, ForUpdate|SkipLocked, SnapshotRead
SELECT shop_invoice.id, shop_invoice.customer_id, shop_invoice.total
FROM shop_invoice
WHERE shop_invoice.id IN (?, ?) ORDER BY shop_invoice.id;

-- parts, one level --------------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_box.id, shop_box.delivery_id
FROM shop_box
WHERE shop_box.delivery_id = ? ORDER BY shop_box.id;

-- parts, one level, of several --------------------------------------------------------------------
-- None_, NoLock
SELECT shop_box.id, shop_box.delivery_id, shop_box.delivery_id AS delivery_id__1
FROM shop_box
WHERE shop_box.delivery_id IN (?, ?) ORDER BY shop_box.id;

-- parts, two levels -------------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id = ? ORDER BY shop_item.id;

-- parts, two levels, of several -------------------------------------------------------------------
-- None_, NoLock
SELECT shop_item.id, shop_item.box_id, shop_item.name, shop_box.id AS id_1
FROM shop_box JOIN shop_item ON shop_box.id = shop_item.box_id
WHERE shop_box.delivery_id IN (?, ?) ORDER BY shop_item.id;

-- parts, many-to-many -----------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_label.id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id = ? ORDER BY shop_label.id;

-- parts, many-to-many, of several -----------------------------------------------------------------
-- None_, NoLock
SELECT shop_label.id, shop_delivery_label.delivery_id
FROM shop_label JOIN shop_delivery_label ON shop_label.id = shop_delivery_label.label_id
WHERE shop_delivery_label.delivery_id IN (?, ?) ORDER BY shop_label.id;

-- parts, composite key ----------------------------------------------------------------------------
-- None_, NoLock
SELECT shop_voucher_entry.id, shop_voucher_entry.year, shop_voucher_entry.number
FROM shop_voucher_entry
WHERE shop_voucher_entry.year = ? AND shop_voucher_entry.number = ?;

-- parts, composite key, of several ----------------------------------------------------------------
-- None_, NoLock
SELECT shop_voucher_entry.id, shop_voucher_entry.year, shop_voucher_entry.number, shop_voucher_entry.year AS year__1, shop_voucher_entry.number AS number__1
FROM shop_voucher_entry
WHERE shop_voucher_entry.year = ? AND shop_voucher_entry.number = ? OR shop_voucher_entry.year = ? AND shop_voucher_entry.number = ?;

-- claims, keys ------------------------------------------------------------------------------------
-- None_
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > ? ORDER BY shop_order.total, shop_order.id
LIMIT ? OFFSET ?;

-- claims, keys after the first page ---------------------------------------------------------------
-- None_
SELECT shop_order.id
FROM shop_order
WHERE shop_order.total > ? AND shop_order.id > ? ORDER BY shop_order.id
LIMIT ? OFFSET ?;

-- claims, keys after the first page, composite ----------------------------------------------------
-- None_
SELECT shop_voucher.year, shop_voucher.number
FROM shop_voucher
WHERE shop_voucher.year > ? OR shop_voucher.year = ? AND shop_voucher.number > ? ORDER BY shop_voucher.year, shop_voucher.number
LIMIT ? OFFSET ?;

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
-- ForUpdate, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > ? AND shop_order.id = ?;

-- claims, of several ------------------------------------------------------------------------------
-- ForUpdate, ForUpdate|SkipLocked
SELECT shop_order.id, shop_order.customer_id, shop_order.total
FROM shop_order
WHERE shop_order.total > ? AND shop_order.id IN (?, ?) ORDER BY shop_order.id;

-- claims, composite, of several -------------------------------------------------------------------
-- ForUpdate, ForUpdate|SkipLocked
SELECT shop_voucher.year, shop_voucher.number, shop_voucher.total
FROM shop_voucher
WHERE shop_voucher.year = ? AND shop_voucher.number = ? OR shop_voucher.year = ? AND shop_voucher.number = ? ORDER BY shop_voucher.year, shop_voucher.number;

-- claims, joined inheritance, of several ----------------------------------------------------------
-- ForUpdate, ForUpdate|SkipLocked
SELECT shop_lease.id, shop_contract.id AS id_1, shop_contract.kind, shop_contract.total, shop_lease.rent
FROM shop_contract JOIN shop_lease ON shop_contract.id = shop_lease.id
WHERE shop_lease.rent > ? AND shop_lease.id IN (?, ?) ORDER BY shop_lease.id;
