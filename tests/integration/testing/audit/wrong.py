"""Programs that lose updates, read stale rows, deadlock or make others wait, as public code has them.

Each function is one program; its name begins with the code of the finding.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine, insert, select, update
from sqlalchemy.orm import Session

from .models import Account, Article, Job, Line, Order, Stock


def lost_update_of_a_counter(engine: Engine) -> None:
    with Session(engine) as session:
        article = session.get_one(Article, 1)
        article.views += 1
        session.commit()


def lost_update_of_a_job_that_two_workers_take(engine: Engine) -> None:
    with Session(engine) as session:
        job = session.scalars(select(Job).where(Job.status == "new").limit(1)).first()
        if job is not None:
            job.status = "running"
        session.commit()


class _Accounts:
    """A repository: the line that reads is not where the value is set, nor where it is stored."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def find(self, owner: str) -> Account:
        return (
            self.session.query(Account).filter_by(owner=owner).order_by(Account.id).limit(1).one()
        )


def lost_update_by_a_method_of_the_class(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        account = _Accounts(session).find("")
        account.withdraw(10)


def lost_update_by_core(engine: Engine) -> None:
    stock = Stock.__table__
    with engine.begin() as connection:
        row = connection.execute(select(stock).where(stock.c.id == 1)).one()
        left = row.quantity - 1
        connection.execute(update(Stock).where(Stock.id == 1).values(quantity=left))


def lost_update_in_a_json_column(engine: Engine) -> None:
    with Session(engine) as session:
        account = session.get_one(Account, 1)
        account.settings["theme"] = "dark"
        session.commit()


def lost_update_after_a_commit(engine: Engine) -> None:
    with Session(engine, expire_on_commit=False) as session:
        order = session.get_one(Order, 1)
        session.commit()
        total = order.total
        order.total = total + 5
        session.commit()


def stale_after_lock_of_the_current_user(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        account = session.get_one(Account, 1)
        assert account.owner == ""
        locked = session.scalars(select(Account).where(Account.id == 1).with_for_update()).one()
        locked.balance -= 10


def _transfer(engine: Engine, source: int, target: int) -> None:
    with Session(engine) as session, session.begin():
        first = session.get_one(Account, source, with_for_update=True)
        second = session.get_one(Account, target, with_for_update=True)
        first.balance -= 1
        second.balance += 1


def lock_order_cycle_between_two_accounts(engine: Engine) -> None:
    _transfer(engine, 1, 2)
    _transfer(engine, 2, 1)


def lock_order_cycle_between_two_classes(engine: Engine) -> None:
    def order_first() -> None:
        with Session(engine) as session, session.begin():
            order = session.get_one(Order, 1, with_for_update=True)
            session.get_one(Stock, 1, with_for_update=True).quantity -= 1
            order.total += 1

    def stock_first() -> None:
        with Session(engine) as session, session.begin():
            session.get_one(Stock, 1, with_for_update=True)
            session.get_one(Order, 1, with_for_update=True).total += 1

    order_first()
    stock_first()


def lock_order_cycle_of_atomic_updates(engine: Engine) -> None:
    for idents in ((1, 2), (2, 1)):
        with engine.begin() as connection:
            for ident in idents:
                connection.execute(
                    update(Stock).where(Stock.id == ident).values(quantity=Stock.quantity - 1)
                )


def detail_without_header_of_an_order(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, 1, with_for_update=True)
        order.lines.append(Line(price=5))
        order.total = sum(line.price for line in order.lines)
    with Session(engine) as session, session.begin():
        session.add(Line(order_id=1, price=7))


def detail_without_header_by_a_statement(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, 1, with_for_update=True)
        order.total = sum(line.price for line in order.lines)
        order.lines.append(Line(price=5))
        order.total += 5
    with Session(engine) as session, session.begin():
        session.execute(insert(Line), [{"order_id": 1, "price": 7}, {"order_id": 1, "price": 8}])


def lock_without_effect_in_autocommit(engine: Engine) -> None:
    with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        session.get_one(Stock, 1, with_for_update=True).quantity -= 1
        session.commit()


def long_hold_while_a_card_is_charged(engine: Engine, charge: Callable[[], None]) -> None:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, 1, with_for_update=True)
        charge()
        order.total = 0
