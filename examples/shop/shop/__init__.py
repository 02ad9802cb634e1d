"""A shop: orders, stock, payments, gapless invoice numbers, and mails."""
