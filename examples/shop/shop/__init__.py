"""A shop: orders, stock, payments, invoices without gaps, and mails."""
