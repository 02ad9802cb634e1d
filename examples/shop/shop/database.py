"""The database of SHOP_URL, and the sessions in it."""

import os

from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession
from shop.models import Item, NumberRange, Order, Payment

URL = make_url(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
# The default of MySQL and MariaDB, REPEATABLE READ, does not allow a lock after a read.
LEVEL = {} if URL.get_backend_name() == "sqlite" else {"isolation_level": "READ COMMITTED"}

engine = create_engine(URL, **LEVEL)
Session = sessionmaker(
    engine,
    class_=LockingSession,
    lock_timeout=5,  # seconds that a request waits
    lock_order=[Order, Payment, Item, NumberRange],
)
