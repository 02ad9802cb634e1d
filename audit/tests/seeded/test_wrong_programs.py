"""Programs that lose updates, read stale rows, deadlock or make others wait: each has its finding.

They are written as public code is. Each function is one program; its name begins with the code of the finding.
"""

from __future__ import annotations

import asyncio
import gc
import linecache
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
import tenacity
from sqlalchemy import (
    Engine,
    Select,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError, NoResultFound
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from doclock_audit.findings import CODES
from doclock_audit.rules import LostUpdate
from doclock_audit.watched import Watched
from sa_doclock import LockingSession
from sa_doclock.testing import Audit, AuditFinding, audit, explore
from tests.integration.asyncio.drivers import drivers_of, url_for
from tests.support.databases import Database

from . import conftest, models
from .conftest import Program, dropped, run
from .models import Account, Article, Booking, Course, Job, Line, Order, Person, Stock, Wallet

pytestmark = pytest.mark.own_logic


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
    """A repository: the program reads, sets and stores the value on different lines."""

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


def long_hold_while_a_card_is_charged(engine: Engine, charge: Callable[[], object]) -> None:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, 1, with_for_update=True)
        charge()
        order.total = 0


# A lock that ended protects nothing.


def lost_update_after_the_commit_that_ends_the_lock(engine: Engine) -> None:
    with Session(engine, expire_on_commit=False) as session:
        stock = session.get_one(Stock, 1, with_for_update=True)
        session.commit()
        stock.quantity -= 1
        session.commit()


def lost_update_after_the_savepoint_that_had_the_lock(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        with session.begin_nested() as savepoint:
            stock = session.get_one(Stock, 1, with_for_update=True)
            savepoint.rollback()
        left = stock.quantity - 1
        stock.quantity = left


def lost_update_after_a_block_of_ours(engine: Engine) -> None:
    with LockingSession(engine, expire_on_commit=False) as session:
        with session.locked(Stock, 1) as stock:
            stock.quantity -= 1
        stock.quantity -= 1
        session.commit()


def lost_update_of_what_was_read_before_the_lock(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        stock = session.get_one(Stock, 1)
        session.execute(select(Stock.id).where(Stock.id == 1).with_for_update())
        stock.quantity -= 1


# All ways to write.


def lost_update_by_a_list_of_keys(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        stock = session.get_one(Stock, 1)
        session.execute(update(Stock), [{"id": 1, "quantity": stock.quantity - 1}])


def lost_update_by_mappings(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        rows = []
        for stock in session.scalars(select(Stock)):
            rows.append({"id": stock.id, "quantity": stock.quantity - 1})  # noqa: PERF401  # in two steps
        session.bulk_update_mappings(Stock.__mapper__, rows)


def lost_update_by_a_list_of_parameters(engine: Engine) -> None:
    stock = Stock.__table__
    change = (
        update(Stock).where(stock.c.id == bindparam("ident")).values(quantity=bindparam("left"))
    )
    with engine.begin() as connection:
        found = connection.execute(select(stock.c.id, stock.c.quantity)).all()
        connection.execute(change, [{"ident": row.id, "left": row.quantity - 1} for row in found])


def lost_update_by_delete_and_insert(engine: Engine) -> None:
    stock = Stock.__table__
    with engine.begin() as connection:
        left = connection.scalar(select(stock.c.quantity).where(stock.c.id == 1))
        connection.execute(delete(Stock).where(stock.c.id == 1))
        connection.execute(insert(Stock).values(id=1, quantity=(left or 0) - 1))


def lost_update_by_an_object_in_the_place_of_another(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        old = session.get_one(Stock, 1)
        session.delete(old)
        session.flush()
        session.add(Stock(id=1, quantity=old.quantity - 1))


def lost_update_by_an_insert_that_overwrites(engine: Engine) -> None:
    table = Stock.__table__
    with engine.begin() as connection:
        stock = connection.execute(select(table).where(table.c.id == 1)).one()
        values = {"id": 1, "quantity": stock.quantity - 1}
        if engine.dialect.name in ("mysql", "mariadb"):
            of_mysql = mysql.insert(Stock).values(values)
            connection.execute(
                of_mysql.on_duplicate_key_update(quantity=of_mysql.inserted.quantity)
            )
        else:
            kit = postgresql if engine.dialect.name == "postgresql" else sqlite
            of_others = kit.insert(Stock).values(values)
            sets = {"quantity": of_others.excluded.quantity}
            connection.execute(of_others.on_conflict_do_update(index_elements=["id"], set_=sets))


def lost_update_by_text(engine: Engine) -> None:
    with engine.begin() as connection:
        query = text("SELECT quantity FROM audited_stock WHERE id = :ident")
        left = connection.execute(query, {"ident": 1}).scalar_one()
        connection.execute(
            text("UPDATE audited_stock SET quantity = :left WHERE id = :ident"),
            {"ident": 1, "left": left - 1},
        )


def lost_update_of_an_attribute_with_another_name(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        cents = session.get_one(Wallet, 1).cents + 1
        session.execute(update(Wallet).where(Wallet.id == 1).values({Wallet.cents: cents}))


def lost_update_by_objects_that_are_saved_in_bulk(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        wallet = session.get_one(Wallet, 1)
        session.expunge(wallet)
        wallet.cents += 1
        session.bulk_save_objects([wallet])


def lost_update_of_rows_that_are_taken_apart(engine: Engine) -> None:
    stock = Stock.__table__
    change = update(Stock).where(stock.c.id == bindparam("ident"))
    with engine.begin() as connection:
        rows = connection.execute(select(stock.c.id, stock.c.quantity)).all()
        left = [{"ident": ident, "quantity": quantity - 1} for ident, quantity in rows]
        connection.execute(change, left)


# A value that only the first transaction may write.


def lost_update_of_a_seat_that_two_take(engine: Engine) -> None:
    def take(job: Job, worker: str) -> None:
        if job.status != "new":
            raise ValueError("taken")
        job.status = worker

    with Session(engine) as session, session.begin():
        take(session.get_one(Job, 1), "ann")


def lost_update_of_the_highest_bid(engine: Engine) -> None:
    def bid(article: Article, amount: int) -> None:
        if amount > article.views:  # noqa: PLR1730  # as public code writes it
            article.views = amount

    with Session(engine) as session, session.begin():
        bid(session.get_one(Article, 1), 7)


# Rows inserted because of rows that were read.


def check_then_insert_of_a_member(engine: Engine) -> None:
    def register(session: Session, email: str) -> None:
        found = session.scalars(select(Person).where(Person.email == email)).first()
        if found is None:
            session.add(Person(id=11, email=email))

    with Session(engine) as session, session.begin():
        register(session, "ann@example.org")


class _People:
    def __init__(self, session: Session) -> None:
        self.session = session

    def with_email(self, email: str) -> Person | None:
        return self.session.query(Person).filter_by(email=email).one_or_none()

    def add(self, person: Person) -> None:
        self.session.add(person)


def check_then_insert_by_a_repository(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        people = _People(session)
        if people.with_email("bob@example.org"):
            raise ValueError("known")
        people.add(Person(id=11, email="bob@example.org"))


def check_then_insert_after_an_error(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        try:
            session.scalars(select(Person).where(Person.email == "eve@example.org")).one()
        except NoResultFound:
            session.add(Person(id=11, email="eve@example.org"))


def check_then_insert_by_core(engine: Engine) -> None:
    with engine.begin() as connection:
        query = select(func.count()).select_from(Person).where(Person.email == "new@example.org")
        if connection.scalar(query) == 0:
            connection.execute(insert(Person).values(id=11, email="new@example.org"))


def check_then_insert_by_get_or_create(engine: Engine) -> None:
    def get_or_create(session: Session, entity: type[Person], **values: object) -> Person:
        found = session.query(entity).filter_by(**values).first()
        if found:
            return found
        found = entity(id=11, **values)
        session.add(found)
        return found

    with Session(engine) as session, session.begin():
        get_or_create(session, Person, email="kim@example.org")


def check_then_insert_by_text(engine: Engine) -> None:
    with engine.begin() as connection:
        values = {"email": "lou@example.org", "password": "", "active": True}
        query = text("SELECT id FROM audited_people WHERE email = :email")
        if connection.execute(query, values).first() is None:
            connection.execute(
                text(
                    "INSERT INTO audited_people (id, email, password, active)"
                    " VALUES (11, :email, :password, :active)"
                ),
                values,
            )


def capacity_of_a_course(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        course = session.get_one(Course, 1)
        count = session.scalar(select(func.count(Booking.id)).where(Booking.course_id == 1)) or 0
        if count >= course.places:
            raise ValueError("full")
        session.add(Booking(course_id=course.id))


def capacity_of_a_collection(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        course = session.get_one(Course, 1)
        if len(course.bookings) < course.places:
            course.bookings.append(Booking(person="ann"))


def max_plus_one_of_a_course(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        greatest = session.scalar(select(func.max(Booking.number)).where(Booking.course_id == 1))
        session.add(Booking(course_id=1, number=(greatest or 0) + 1))


def max_plus_one_of_the_last_row(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        last = session.scalars(select(Booking).order_by(Booking.number.desc()).limit(1)).first()
        booking = Booking(course_id=1)
        booking.number = last.number + 1 if last else 1
        session.add(booking)


def _idle_transaction_while_a_card_is_charged(engine: Engine, charge: Callable[[], object]) -> None:
    with Session(engine) as session, session.begin():
        session.get_one(Order, 1)
        charge()


# Texts that reach the driver unchanged.


def _marker(engine: Engine) -> str:
    return "?" if engine.dialect.paramstyle == "qmark" else "%s"


def lost_update_by_the_driver(engine: Engine) -> None:
    with engine.begin() as connection:
        found = connection.exec_driver_sql(
            "SELECT id, quantity FROM audited_stock WHERE id = 1"
        ).one()
        sql = "UPDATE audited_stock SET quantity = {0} WHERE id = {0}".format(_marker(engine))
        connection.exec_driver_sql(sql, (found[1] - 1, found[0]))


def lost_update_by_the_driver_for_many(engine: Engine) -> None:
    with engine.begin() as connection:
        rows = connection.exec_driver_sql("SELECT id, quantity FROM audited_stock").all()
        sql = "UPDATE audited_stock SET quantity = {0} WHERE id = {0}".format(_marker(engine))
        connection.exec_driver_sql(sql, [(quantity - 1, ident) for ident, quantity in rows])


def lost_update_in_a_text_that_has_the_values(engine: Engine) -> None:
    with engine.begin() as connection:
        quantity = connection.scalar(text("SELECT quantity FROM audited_stock WHERE id = 1"))
        connection.execute(text(f"UPDATE audited_stock SET quantity = {quantity - 1} WHERE id = 1"))


def lost_update_after_a_savepoint_in_a_text(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.execute(text("SAVEPOINT mine"))
        session.execute(select(Stock.id).where(Stock.id == 1).with_for_update())
        session.execute(text("ROLLBACK TO SAVEPOINT mine"))
        session.get_one(Stock, 1).quantity -= 1


def lost_update_by_case(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        rows = session.execute(select(Stock.id, Stock.quantity)).all()
        new = {ident: quantity - 1 for ident, quantity in rows}
        session.execute(update(Stock).values(quantity=case(new, value=Stock.id)))


def check_then_insert_by_the_driver(engine: Engine) -> None:
    sql = f"SELECT id FROM audited_people WHERE email = {_marker(engine)}"
    with engine.begin() as connection:
        if connection.exec_driver_sql(sql, ("kim@example.org",)).first() is None:
            connection.exec_driver_sql(
                "INSERT INTO audited_people (id, email, password, active)"
                f" VALUES (12, {_marker(engine)}, '', {'true' if engine.name == 'postgresql' else 1})",
                ("kim@example.org",),
            )


# Missing items of a list.

_EMAILS: Final = ("a@example.org", "b@example.org")


def check_then_insert_of_the_missing(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        known = set(session.scalars(select(Person.email).where(Person.email.in_(_EMAILS))))
        missing = [email for email in _EMAILS if email not in known]
        session.add_all([Person(email=email) for email in missing])


def check_then_insert_of_the_missing_that_a_loop_collects(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        known = [person.email for person in session.scalars(select(Person))]
        missing = []
        for email in _EMAILS:
            if email not in known:
                missing.append(email)  # noqa: PERF401
        session.add_all([Person(email=email) for email in missing])


def check_then_insert_of_the_missing_in_bulk(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        known = {person.email for person in session.scalars(select(Person))}
        rows = [{"email": email} for email in _EMAILS if email not in known]
        if rows:
            session.execute(insert(Person), rows)


def check_then_insert_of_a_difference(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        missing = set(_EMAILS).difference(session.scalars(select(Person.email)))
        for email in sorted(missing):
            session.add(Person(email=email))


def check_then_insert_of_what_a_dictionary_lacks(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        by_email = {person.email: person for person in session.scalars(select(Person))}
        new = []
        for email in _EMAILS:
            if by_email.get(email) is None:
                new.append(Person(email=email))  # noqa: PERF401
        session.bulk_save_objects(new)


def check_then_insert_of_a_place_that_no_booking_has(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        course = session.get_one(Course, 1)
        for booking in course.bookings:
            if booking.number == 1:
                break
        else:
            course.bookings.append(Booking(number=1))


def check_then_insert_in_an_expression(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        found = session.scalar(select(Person).where(Person.email == "ida@example.org"))
        session.add(found or Person(email="ida@example.org"))


def check_then_insert_by_match(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        match session.scalar(select(Person).where(Person.email == "jon@example.org")):
            case None:
                session.add(Person(email="jon@example.org"))
            case person:
                person.active = True


def _check_room(session: Session, course: Course) -> None:
    if session.query(Booking).filter_by(course_id=course.id).count() >= course.places:
        raise ValueError("full")


def capacity_in_a_function_that_raises(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        course = session.get_one(Course, 1)
        _check_room(session, course)
        session.add(Booking(course_id=course.id))


def max_plus_one_by_the_driver(engine: Engine) -> None:
    with engine.begin() as connection:
        greatest = connection.exec_driver_sql("SELECT max(number) FROM audited_bookings").scalar()
        sql = f"INSERT INTO audited_bookings (id, course_id, person, number) VALUES (9, 1, '', {_marker(engine)})"
        connection.exec_driver_sql(sql, ((greatest or 0) + 1,))


# Values in a dictionary.


def lost_update_by_a_dictionary(engine: Engine) -> None:
    with engine.begin() as connection:
        values = dict(connection.execute(select(Stock.id, Stock.quantity)).mappings().first() or {})
        values["quantity"] -= 1
        connection.execute(update(Stock).where(Stock.id == 1).values(**values))


def lost_update_by_a_dictionary_that_is_filled(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        stock = session.get_one(Stock, 1)
        values: dict[str, int] = {}
        values["quantity"] = stock.quantity - 1
        session.execute(update(Stock).where(Stock.id == 1).values(values))


def lost_update_by_the_parameters_of_a_text(engine: Engine) -> None:
    with engine.begin() as connection:
        query = text("SELECT id, quantity FROM audited_stock WHERE id = 1")
        values = dict(connection.execute(query).mappings().one())
        values.update(quantity=values["quantity"] - 1)
        connection.execute(
            text("UPDATE audited_stock SET quantity = :quantity WHERE id = :id"), values
        )


def lost_update_by_dictionaries_that_a_loop_changes(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        rows = [dict(row) for row in session.execute(select(Stock.id, Stock.quantity)).mappings()]
        for row in rows:
            row["quantity"] -= 1
        session.execute(update(Stock), rows)


# Rows that one statement both reads and inserts.


def _next_number() -> Any:
    return func.coalesce(func.max(Booking.number), 0) + 1


def max_plus_one_by_the_insert(engine: Engine) -> None:
    row = select(literal(1), _next_number(), literal("ann")).where(Booking.course_id == 1)
    with Session(engine) as session, session.begin():
        session.execute(insert(Booking).from_select(["course_id", "number", "person"], row))


def max_plus_one_by_a_value_of_an_object(engine: Engine) -> None:
    number = select(_next_number()).where(Booking.course_id == 1).scalar_subquery()
    with Session(engine) as session, session.begin():
        session.add(Booking(course_id=1, number=number))


def max_plus_one_by_a_text_that_inserts(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO audited_bookings (id, course_id, person, number)"
                " SELECT 9, :course, '', coalesce(max(number), 0) + 1 FROM audited_bookings"
                " WHERE course_id = :course"
            ),
            {"course": 1},
        )


def check_then_insert_where_not_exists(engine: Engine) -> None:
    row = select(literal(1), literal("ann"), literal(0)).where(
        ~exists().where(Booking.person == "ann")
    )
    with Session(engine) as session, session.begin():
        session.execute(insert(Booking).from_select(["course_id", "person", "number"], row))


def capacity_by_the_insert(engine: Engine) -> None:
    count = select(func.count()).where(Booking.course_id == 1).scalar_subquery()
    row = select(literal(1), literal("ann"), literal(0)).where(count < 2)
    with Session(engine) as session, session.begin():
        session.execute(insert(Booking).from_select(["course_id", "person", "number"], row))


def check_then_insert_after_an_update_of_no_row(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        change = update(Person).where(Person.email == "new@example.org").values(phone="123")
        result: Any = session.execute(change)
        if result.rowcount == 0:
            session.add(Person(email="new@example.org", phone="123"))


# Other ways to check whether a row exists.


def check_then_insert_by_exists(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        if not session.scalar(select(exists().where(Person.email == "sue@example.org"))):
            session.add(Person(email="sue@example.org"))


def _is_free(session: Session, email: str) -> bool:
    if session.query(Person).filter_by(email=email).count() > 0:  # noqa: SIM103  # as public code writes it
        return False
    return True


def check_then_insert_by_a_function_that_answers(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        if _is_free(session, "tom@example.org"):
            session.add(Person(email="tom@example.org"))


def check_then_insert_of_a_free_code(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        code = "a"
        while session.scalar(select(Person).where(Person.email == code)) is not None:
            code += "a"
        session.add(Person(email=code))


def check_then_insert_of_a_missing_key(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        by_email = {person.email: person for person in session.scalars(select(Person))}
        for email in _EMAILS:
            try:
                by_email[email].active = True
            except KeyError:  # noqa: PERF203
                by_email[email] = Person(email=email)
                session.add(by_email[email])


def check_then_insert_of_one_of_two_lists(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        course = session.get_one(Course, 1)
        known = {booking.person for booking in course.bookings}
        missing: list[str] = []
        doubled: list[str] = []
        for person in ("ann", "bob"):
            (doubled if person in known else missing).append(person)
        session.add_all([Booking(course_id=1, person=person) for person in missing])


def check_then_insert_unless_all_differ(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        people = session.scalars(select(Person)).all()
        if all(person.email != "uma@example.org" for person in people):
            session.add(Person(email="uma@example.org"))


def _is_full(session: Session, course: Course) -> bool:
    return session.query(Booking).filter_by(course_id=course.id).count() >= course.places


def capacity_by_a_function_that_answers(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        course = session.get_one(Course, 1)
        if not _is_full(session, course):
            session.add(Booking(course_id=course.id))


# --------------------------------------------------------------------------------------------------
# The tests.


def code_of(program: Program) -> str:
    name = program.__name__.replace("_", "-")
    return next(code for code in CODES if name.startswith(code))


PROGRAMS = [
    found
    for name, found in sorted(globals().items())
    if name.replace("_", "-").startswith(tuple(CODES))
]

#: The first statement writes: it locks an SQLite file before reading it.
_BEHIND_A_WRITE: Final = (
    *(max_plus_one_by_the_insert, max_plus_one_by_a_value_of_an_object),
    *(max_plus_one_by_a_text_that_inserts, check_then_insert_where_not_exists),
    capacity_by_the_insert,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_wrong_program_has_its_finding(
    program: Program, engine: Engine, database: Database, wait: Callable[[], None]
) -> None:
    if program is max_plus_one_by_a_value_of_an_object and database.name == "mysql":
        pytest.skip("MySQL does not read the table of an INSERT in a subquery")
    found = run(program, engine, wait)
    of_program = [one for one in found.findings if one.code == code_of(program)]
    assert of_program, found.report()
    certain = database.name != "sqlite" or program not in _BEHIND_A_WRITE
    certain = certain and program is not check_then_insert_after_an_update_of_no_row
    assert {one.certain for one in of_program} == {certain}, found.report()
    places = {site.rpartition(":")[0] for one in of_program for site in one.sites}
    assert places <= {__file__, models.__file__}
    others = {one.code for one in found.findings if one.severity == "error"} - {code_of(program)}
    assert others <= dropped(database), found.report()


#: Each returns 1 if the two programs excluded each other.
_PROOFS: Final = (
    (max_plus_one_by_the_insert, select(func.count()).where(Booking.number == 2)),
    (check_then_insert_where_not_exists, select(func.count()).where(Booking.person == "ann")),
    (capacity_by_the_insert, select(func.count()).where(Booking.person == "ann")),
)


@pytest.mark.parametrize(("program", "number"), _PROOFS, ids=[one.__name__ for one, _ in _PROOFS])
def test_a_statement_that_reads_and_inserts_is_a_race_but_on_sqlite(
    program: Program, number: Select[Any], engine: Engine, database: Database
) -> None:
    def before() -> None:
        with Session(engine) as session:
            session.execute(delete(Booking))
            session.add(Booking(course_id=1, number=1))
            session.commit()

    def is_one() -> bool:
        with Session(engine) as session:
            return bool(session.scalar(number) == 1)

    found = explore(
        lambda: program(engine), lambda: program(engine), before=before, invariant=is_one
    )
    assert bool(found.failures) == (database.name != "sqlite"), found


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Event:
    """An event that is set once the audit has seen a transaction wait under its line."""
    found = Event()
    note = Watched.note_waiting

    def note_and_tell(watched: Watched, seconds: float) -> None:
        note(watched, seconds)
        waiting = (one.transaction.waiting for one in watched.sessions.values())
        places = [one.place for one in waiting if one is not None and one.place]
        if any("charge()" in linecache.getline(*place) for place in places):
            found.set()

    monkeypatch.setattr(Watched, "note_waiting", note_and_tell)
    return found


@pytest.mark.databases("sqlite", "postgresql")
def test_the_line_under_which_a_transaction_waits(engine: Engine, seen: Event) -> None:
    found = run(_idle_transaction_while_a_card_is_charged, engine, seen.wait, hold_limit=0.02)
    (finding,) = found.findings
    assert (finding.code, finding.severity) == ("idle-transaction", "warning")
    assert finding.sites == (f"{__file__}:{line_of('charge()', 1)}",)
    # The caller of the test, such as a script that runs pytest, does not belong to the program.
    (caller,) = finding.callers
    file, _, line = caller.rpartition(":")
    assert file == conftest.__file__
    assert linecache.getline(file, int(line)).strip() == "program(*arguments)"


@pytest.mark.databases("sqlite", "postgresql")
def test_the_line_under_which_a_transaction_waits_with_a_lock(engine: Engine, seen: Event) -> None:
    with audit(hold_limit=0.02) as found:
        long_hold_while_a_card_is_charged(engine, seen.wait)
    (finding,) = (one for one in found.findings if one.code == "long-hold")
    assert finding.sites[1:] == (f"{__file__}:{line_of('charge()')}",)


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.usefixtures("engine")
def test_the_line_that_awaits_in_a_transaction(database: Database, seen: Event) -> None:
    async def charge() -> None:
        await asyncio.to_thread(seen.wait)  # charge() waits

    async def pay() -> None:
        asynchronous = create_async_engine(url_for(database, drivers_of(database.column)[0]))
        async with AsyncSession(asynchronous) as session:
            await session.get_one(Order, 1)
            await charge()
        await asynchronous.dispose()

    with audit(hold_limit=0.02) as found:
        asyncio.run(pay())
    (finding,) = (one for one in found.findings if one.code == "idle-transaction")
    assert finding.sites == (f"{__file__}:{line_of('# charge() waits')}",)


def line_of(text: str, position: int = 0) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if text in line][position]


def besides_holds(found: Audit) -> list[AuditFinding]:
    """Return the findings that do not depend on the speed of the machine."""
    return [one for one in found.findings if one.code != "long-hold"]


@pytest.mark.databases("postgresql", "mariadb")
def test_a_level_that_finds_conflicts_needs_no_lock(engine: Engine, database: Database) -> None:
    repeatable = engine.execution_options(isolation_level="REPEATABLE READ")
    with audit() as found:
        lost_update_of_a_counter(repeatable)
    version = repeatable.dialect.server_version_info
    assert version is not None
    detects = database.name == "postgresql" or version >= (11, 6, 2)
    codes = [one.code for one in besides_holds(found)]
    assert codes == ([] if detects else ["lost-update"])


def test_nothing_is_kept_of_what_has_ended(engine: Engine) -> None:
    with audit() as found:
        for program in (lost_update_of_a_counter, lost_update_by_core):
            program(engine)
        gc.collect()
        watched = found._watched
        kept = (watched.reads, watched.assigned, watched.sessions, watched._connections)
        assert [len(one) for one in kept] == [0, 0, 0, 0]
        assert watched.transactions >= 2


def test_a_program_is_audited_in_its_threads(engine: Engine) -> None:
    def counts_under_the_lock() -> None:
        with Session(engine) as session, session.begin():
            session.get_one(Article, 2, with_for_update=True).views += 1

    with audit() as found, ThreadPoolExecutor(4) as threads:
        for _ in range(8):
            threads.submit(counts_under_the_lock)
        threads.submit(lost_update_of_a_counter, engine).result()
    assert found.failures == (0, "")
    assert {one.code for one in found.findings} >= {"lost-update"}


def test_after_the_block_nothing_is_watched(engine: Engine) -> None:
    with audit() as found:
        pass
    lost_update_of_a_counter(engine)
    assert (found.statements, found.findings) == (0, [])


def test_what_is_rolled_back_is_possible_at_most(engine: Engine) -> None:
    with audit() as found, Session(engine) as session:
        session.get_one(Article, 1).views += 1
        session.flush()
        session.rollback()
    assert [(one.code, one.certain) for one in besides_holds(found)] == [("lost-update", False)]


def test_an_error_of_the_audit_is_none_of_the_program(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LostUpdate, "wrote", lambda *_: 1 / 0)
    with audit() as found:
        lost_update_of_a_counter(engine)
    times, first = found.failures
    assert times == 1
    assert "ZeroDivisionError" in first


def test_an_error_of_the_program_comes_out(engine: Engine) -> None:
    query = select(Article).where(Article.id == 1).with_for_update()
    with audit(), Session(engine) as session, pytest.raises(DBAPIError):
        session.scalars(query.where(text("no_such_column = 1"))).all()


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.usefixtures("engine")
def test_an_asynchronous_session(database: Database) -> None:
    async def add(ident: int) -> None:
        asynchronous = create_async_engine(url_for(database, drivers_of(database.column)[0]))
        async with AsyncSession(asynchronous) as session:
            article = await session.get_one(Article, ident)
            article.views += 1
            await session.commit()
        await asynchronous.dispose()

    with audit() as found:
        asyncio.run(add(1))
    (finding,) = besides_holds(found)
    assert (finding.code, finding.certain) == ("lost-update", True)
    assert {site.rpartition(":")[0] for site in finding.sites} == {__file__}
    assert len(finding.sites) == 3


def test_the_lines_of_installed_libraries_are_none_of_the_program(engine: Engine) -> None:
    with audit() as found, Session(engine) as session:
        article = session.get_one(Article, 1)
        article.views += 1
        tenacity.Retrying()(session.commit)
    (finding,) = besides_holds(found)
    assert {site.rpartition(":")[0] for site in finding.sites} == {__file__}
    assert len(finding.sites) == 3
