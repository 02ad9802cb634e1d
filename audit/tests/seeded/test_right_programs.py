"""Programs that need no further lock, written as public code is: none has an error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

import pytest
from sqlalchemy import Engine, func, insert, literal, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from sa_doclock import LockingSession, LockOptions
from tests.support.databases import Database

from .conftest import Program, dropped, run
from .models import (
    Account,
    Article,
    Booking,
    Course,
    Invoice,
    Job,
    Line,
    Login,
    Order,
    Page,
    Person,
    SchemaVersion,
    Stock,
    Wallet,
)

pytestmark = pytest.mark.own_logic


def locked_when_it_is_read(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        account = session.get_one(Account, 1, with_for_update=True)
        account.balance -= 10


def a_version_counter(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        page = session.get_one(Page, 1)
        page.text += "more"


def computed_by_the_database(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.get_one(Article, 1).views = Article.views + 1
        session.execute(update(Article).where(Article.id == 2).values(views=Article.views + 1))


def compare_and_set(engine: Engine) -> None:
    with engine.begin() as connection:
        found = connection.execute(select(Job.id, Job.status).order_by(Job.id).limit(1)).one()
        status = f"{found.status}, done"
        same = (Job.id == found.id, Job.status == found.status)
        assert connection.execute(update(Job).where(*same).values(status=status)).rowcount == 1


def a_queue_that_skips_what_others_hold(engine: Engine) -> None:
    for order in (Job.id, Job.id.desc()):  # no session waits, so no order can deadlock
        query = select(Job).where(Job.status.like("new%")).order_by(order)
        with Session(engine) as session, session.begin():
            for job in session.scalars(query.with_for_update(skip_locked=True)):
                job.status += ", tried"


def the_header_is_always_locked_first(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, 1, with_for_update=True)
        order.lines.append(Line(price=5))
        order.total = sum(line.price for line in order.lines)
    for backwards in (False, True):  # the header excludes others, so the order is free
        with Session(engine) as session, session.begin():
            order = session.get_one(Order, 1, with_for_update=True)
            for line in sorted(order.lines, key=lambda one: one.id, reverse=backwards):
                line.price += 1
                session.flush()
            order.total = sum(line.price for line in order.lines)


def rows_are_locked_in_the_order_of_their_keys(engine: Engine) -> None:
    for idents in ((1, 2), (2, 1)):
        with Session(engine) as session, session.begin():
            query = select(Account).where(Account.id.in_(idents)).order_by(Account.id)
            for account in session.scalars(query.with_for_update()):
                account.balance += 1


def refreshed_by_the_lock(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        account = session.get_one(Account, 1)
        session.refresh(account, with_for_update=True)
        account.balance -= 1
    with Session(engine) as session, session.begin():
        account = session.get_one(Account, 1)
        query = select(Account).where(Account.id == 1).with_for_update()
        session.scalars(query.execution_options(populate_existing=True)).one()
        account.balance -= 1


def a_form_that_replaces_what_was_there(engine: Engine) -> None:
    form = {"title": "A title", "id": 1}
    with Session(engine) as session, session.begin():
        article = session.get_one(Article, form["id"])
        if article.title != form["title"]:
            article.title = str(form["title"])


def a_log_whose_rows_have_no_sum(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        account = session.get_one(Account, 1, with_for_update=True)
        account.balance += 1
        session.add(Login(account_id=1))
    with Session(engine) as session, session.begin():
        session.add(Login(account_id=1))


def inserted_or_there_already(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        try:
            with session.begin_nested():
                session.add(Stock(id=1, quantity=1))
        except IntegrityError:
            session.execute(update(Stock).where(Stock.id == 1).values(quantity=Stock.quantity + 1))


def read_before_and_locked_in_the_next_transaction(engine: Engine) -> None:
    with Session(engine) as session:
        assert session.get_one(Stock, 1).quantity
        session.commit()
        stock = session.get_one(Stock, 1, with_for_update=True)
        stock.quantity -= 1
        session.commit()


def a_session_of_ours(engine: Engine) -> None:
    for idents in ((1, 2), (2, 1)):
        with LockingSession(engine) as session:
            session.get_one(Account, 1)
            for account in session.get_entities(Account, idents, LockOptions.ForUpdate):
                account.balance += 1
            session.save_changes()
    with LockingSession(engine) as session, session.locked_document(Order, 1) as order:
        order.total += 1


def a_named_lock(engine: Engine) -> None:
    with LockingSession(engine) as session:
        session.lock_key("stock")
        session.get_one(Stock, 1).quantity -= 1
        session.commit()


def written_first_and_read_then(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.execute(update(Stock).where(Stock.id == 1).values(quantity=Stock.quantity - 1))
        stock = session.get_one(Stock, 1)
        if stock.quantity < 5:
            stock.quantity += 10


def new_rows_and_counts(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        order = Order(id=3, lines=[Line(price=1), Line(price=2)])
        session.add(order)
        session.flush()
        session.refresh(order)
        order.total = sum(line.price for line in order.lines)
        session.flush()
        assert session.scalar(select(func.count()).select_from(Line)) == 4


def documents_inserted_in_bulk(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, 1, with_for_update=True)
        order.lines.append(Line(price=0))
        order.total += 1
    with Session(engine) as session, session.begin():
        session.execute(insert(Order), [{"id": 8, "total": 3}, {"id": 9, "total": 4}])
        session.execute(insert(Line), [{"order_id": 8, "price": 3}, {"order_id": 9, "price": 4}])


def serializable(engine: Engine) -> None:
    with Session(engine.execution_options(isolation_level="SERIALIZABLE")) as session:
        session.get_one(Stock, 1).quantity -= 1
        session.commit()


# The condition only decides whether to write the same value.


def a_person_who_is_active_no_more(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        person = session.get_one(Person, 1)
        if person.active:
            person.active = False


def a_phone_that_replaces_another(engine: Engine) -> None:
    def change(person: Person, new: str | None) -> None:
        if new and person.phone != new:
            person.phone = new

    with Session(engine) as session, session.begin():
        change(session.get_one(Person, 1), "123")


def a_phone_of_a_variable(engine: Engine) -> None:
    def change(person: Person, new: str) -> None:
        old = person.phone
        if old == new:
            return
        person.phone = new

    with Session(engine) as session, session.begin():
        change(session.get_one(Person, 1), "123")


def _verify(password: str, hashed: str) -> bool:
    return f"hashed {password}" == hashed


def a_password_only_if_it_differs(engine: Engine) -> None:
    def change(person: Person, password: str) -> None:
        if not person.password or not _verify(password, person.password):
            person.password = f"hashed {password}"

    with Session(engine) as session, session.begin():
        change(session.get_one(Person, 1), "secret")


def a_form_that_keeps_what_it_does_not_have(engine: Engine) -> None:
    def change(person: Person, form: dict[str, str]) -> None:
        person.phone = form.get("phone", person.phone or "")
        person.email = form.get("email") or person.email

    with Session(engine) as session, session.begin():
        change(session.get_one(Person, 1), {"phone": "123", "email": "ann@example.org"})


def a_form_whose_field_is_called_so(engine: Engine) -> None:
    def change(person: Person, phone: str) -> None:
        person.phone = phone

    with Session(engine) as session, session.begin():
        person, form = session.get_one(Person, 1), Person(phone="123")
        change(person, form.phone or "")


def found_by_what_is_replaced(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        query = session.query(Person).filter_by(email="", active=True)
        person = query.first()
        assert person is not None
        person.active = False


def merged_with_a_new_value(engine: Engine) -> None:
    def rename(session: Session, article: Article) -> None:
        session.merge(Article(id=1, title=article.title))

    with Session(engine) as session, session.begin():
        rename(session, Article(title="another"))


# Locked by a SELECT that names the row.


def locked_by_its_key(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.execute(select(Stock.id).where(Stock.id == 1).with_for_update())
        session.get_one(Stock, 1).quantity -= 1


def locked_by_a_query_of_columns(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.query(Stock.id).filter(Stock.quantity > 0).with_for_update().all()
        session.get_one(Stock, 1).quantity -= 1


def locked_by_an_alias(engine: Engine) -> None:
    other = aliased(Stock)
    with Session(engine) as session, session.begin():
        session.execute(select(other.id).where(other.id == 1).with_for_update())
        session.get_one(Stock, 1).quantity -= 1


def locked_by_core(engine: Engine) -> None:
    stock = Stock.__table__
    with engine.begin() as connection:
        connection.execute(select(stock.c.id).where(stock.c.id == 1).with_for_update())
        left = connection.scalar(select(stock.c.quantity).where(stock.c.id == 1))
        connection.execute(update(Stock).where(stock.c.id == 1).values(quantity=(left or 0) - 1))


def locked_by_core_on_the_connection_of_a_session(engine: Engine) -> None:
    stock = Stock.__table__
    with Session(engine) as session, session.begin():
        session.scalars(select(Article)).all()
        locked = select(stock.c.id).where(stock.c.id == 1).with_for_update()
        session.connection().execute(locked)
        session.get_one(Stock, 1).quantity -= 1


def locked_by_text(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        return  # SQLite's grammar has no FOR UPDATE
    with Session(engine) as session, session.begin():
        session.scalars(select(Article)).all()
        session.execute(text("SELECT id FROM audited_stock WHERE id = 1 FOR UPDATE"))
        session.get_one(Stock, 1).quantity -= 1


def locked_by_a_join_that_returns_another_class(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        query = select(Line).join(Order, Line.order_id == Order.id).where(Order.id == 1)
        session.scalars(query.with_for_update(of=Order)).all()
        session.get_one(Order, 1).total += 1


def refreshed_in_part_by_the_lock(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        account = session.get_one(Account, 1)
        session.refresh(account, ["balance"], with_for_update=True)
        account.balance -= 1


def serializable_by_text(engine: Engine) -> None:
    if engine.dialect.name != "postgresql":
        return  # MySQL and MariaDB have it for the next transaction
    with Session(engine) as session, session.begin():
        session.execute(text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
        session.get_one(Stock, 1).quantity -= 1


def another_column_of_rows_that_are_taken_apart(engine: Engine) -> None:
    stock, delivered = Stock.__table__, {1: 5, 2: 6}
    with engine.begin() as connection:
        for ident, _ in connection.execute(select(stock.c.id, stock.c.quantity)).all():
            change = update(Stock).where(stock.c.id == ident)
            connection.execute(change.values(quantity=delivered[ident]))


def another_attribute_with_another_name(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        cents = len(session.get_one(Wallet, 1).label)
        session.execute(update(Wallet).where(Wallet.id == 1).values(cents=cents))


# Rows inserted because of rows that were read.


def found_by_a_unique_column(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        if session.scalars(select(Person).where(Person.nick == "ann")).first() is None:
            session.add(Person(id=11, nick="ann"))


def the_only_row_of_its_table(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        version = session.query(SchemaVersion).one_or_none()
        if version is not None:
            return
        version = SchemaVersion(number=3)
        session.add(version)


def a_place_under_the_lock_of_its_course(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        course = session.get_one(Course, 1, with_for_update=True)
        count = session.scalar(select(func.count(Booking.id)).where(Booking.course_id == 1)) or 0
        if count >= course.places:
            raise ValueError("full")
        session.add(Booking(course_id=1, number=count + 1))


def a_number_with_a_unique_constraint(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        greatest = session.scalar(select(func.max(Invoice.number)).where(Invoice.year == 2026))
        session.add(Invoice(year=2026, number=(greatest or 0) + 1))


def a_history_that_grows(engine: Engine) -> None:
    def note(session: Session, person: str) -> None:
        last = session.scalars(select(Booking).where(Booking.course_id == 1).limit(1)).first()
        if last is None or last.person != person:
            session.add(Booking(course_id=1, person=person))

    with Session(engine) as session, session.begin():
        note(session, "ann")


def what_is_not_there_yet(engine: Engine) -> None:
    def add_missing(session: Session, course: Course, people: list[str]) -> None:
        known = {booking.person for booking in course.bookings}
        missing: list[str] = []
        doubled: list[str] = []
        for person in people:
            (doubled if person in known else missing).append(person)
        if doubled:
            raise ValueError(doubled)
        if not missing:
            return
        session.add_all([Booking(course_id=1, person=person) for person in missing])

    with Session(engine) as session, session.begin():
        course = session.get_one(Course, 1, with_for_update=True)
        add_missing(session, course, ["ann", "bob"])


def looked_at_in_another_function(engine: Engine) -> None:
    def has_errors(session: Session, course: int) -> bool:
        bookings = session.scalars(select(Booking).where(Booking.course_id == course)).all()
        print(f"{len(bookings)} bookings")  # the program uses them for nothing else
        return course < 0

    with Session(engine) as session, session.begin():
        if has_errors(session, 1):
            raise ValueError("no course")
        session.add(Booking(course_id=1, person="ann"))


# Inserts that the database prevents, and reads that do not look for the row.


def the_missing_of_a_unique_column(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        known = {person.nick for person in session.scalars(select(Person))}
        session.add_all([Person(nick=nick) for nick in ("ann", "bob") if nick not in known])
    with Session(engine) as session, session.begin():
        by_nick = {person.nick: person for person in session.scalars(select(Person))}
        if by_nick.get("cid") is None:
            session.add(Person(nick="cid"))
        missing = {"ann", "dot"} - set(session.scalars(select(Person.nick)))
        session.execute(insert(Person), [{"nick": nick} for nick in missing])


def the_missing_of_one_year(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        known = session.scalars(select(Invoice.number).where(Invoice.year == 2026)).all()
        for number in (1, 2):
            if number not in known:
                session.add(Invoice(year=2026, number=number))


def copies_of_some_rows(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        left_out = {"eve@example.org"}
        people = session.scalars(select(Person)).all()
        session.add_all(
            [Person(email=f"{one.email}2") for one in people if one.email not in left_out]
        )


def the_missing_under_the_lock_of_their_course(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.get_one(Course, 1, with_for_update=True)
        known = set(session.scalars(select(Booking.person).where(Booking.course_id == 1)))
        session.add_all(
            Booking(course_id=1, person=name) for name in sorted({"ann", "bob"} - known)
        )


def another_column_by_text(engine: Engine) -> None:
    with engine.begin() as connection:
        found = connection.execute(
            text("SELECT owner, balance FROM audited_accounts WHERE id = 1")
        ).one()
        owner = connection.scalar(text("SELECT owner FROM audited_accounts WHERE id = 1"))
        new = {"balance": len(found[0]) + len(owner)}
        connection.execute(text("UPDATE audited_accounts SET balance = :balance WHERE id = 1"), new)


def compare_and_set_by_the_driver(engine: Engine) -> None:
    marker = "?" if engine.dialect.paramstyle == "qmark" else "%s"
    sql = f"UPDATE audited_stock SET quantity = {marker} WHERE id = 1 AND quantity = {marker}"
    with engine.begin() as connection:
        quantity = connection.exec_driver_sql(
            "SELECT quantity FROM audited_stock WHERE id = 1"
        ).scalar()
        assert quantity is not None
        connection.exec_driver_sql(sql, (quantity - 1, quantity))


def _lock_by_the_driver(session: Session) -> None:
    cursor = session.connection().connection.cursor()
    cursor.execute("UPDATE audited_stock SET quantity = quantity WHERE id = 1")
    cursor.close()


def locked_by_a_cursor_of_the_driver(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        _lock_by_the_driver(session)
        session.get_one(Stock, 1).quantity -= 1


def an_unknown_nick_by_exists(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        if not session.query(session.query(Person).filter_by(nick="sue").exists()).scalar():
            session.add(Person(nick="sue"))


def a_number_that_a_unique_constraint_keeps(engine: Engine) -> None:
    number = func.coalesce(func.max(Invoice.number), 0) + 1
    row = select(literal(2026), number).where(Invoice.year == 2026)
    with Session(engine) as session, session.begin():
        session.execute(insert(Invoice).from_select(["year", "number"], row))


def a_number_under_the_lock_of_its_course(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.get_one(Course, 1, with_for_update=True)
        row = select(literal(1), func.count() + 1).where(Booking.course_id == 1)
        session.execute(insert(Booking).from_select(["course_id", "number"], row))


def rows_copied_by_one_statement(engine: Engine) -> None:
    row = select(Booking.course_id, Booking.person).where(Booking.course_id == 2)
    with Session(engine) as session, session.begin():
        session.execute(insert(Booking).from_select(["course_id", "person"], row))


def a_function_that_says_that_it_is_known(engine: Engine) -> None:
    def is_unknown(session: Session) -> bool:
        return session.scalar(select(Person).where(Person.email == "")) is None

    with Session(engine) as session, session.begin():
        if not is_unknown(session):
            session.add(Person(email=""))  # the program wants a second row


def a_dictionary_of_new_values(engine: Engine) -> None:
    stock = Stock.__table__
    with engine.begin() as connection:
        assert connection.execute(select(stock.c.quantity).where(stock.c.id == 1)).one()
        values = {"quantity": 5}
        values["quantity"] += 5
        connection.execute(update(Stock).where(Stock.id == 1).values(values))


# --------------------------------------------------------------------------------------------------
# The test.

PROGRAMS: list[Program] = [
    found
    for name, found in sorted(globals().items())
    if inspect.isfunction(found) and found.__module__ == __name__ and name[0] != "_"
]

#: Findings that depend on the purpose of the program.
_POSSIBLE: Mapping[Program, AbstractSet[str]] = {
    a_form_that_replaces_what_was_there: {"lost-update"},
    a_log_whose_rows_have_no_sum: {"detail-without-header"},
    refreshed_in_part_by_the_lock: {"stale-after-lock"},  # on the other columns
    **dict.fromkeys(
        (
            *(a_person_who_is_active_no_more, a_phone_that_replaces_another),
            *(a_phone_of_a_variable, a_password_only_if_it_differs),
            *(a_form_that_keeps_what_it_does_not_have, a_form_whose_field_is_called_so),
            *(found_by_what_is_replaced, merged_with_a_new_value),
            *(another_column_by_text, locked_by_a_cursor_of_the_driver),
        ),
        frozenset({"lost-update"}),
    ),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_right_program_has_no_error(
    program: Program, engine: Engine, database: Database, wait: Callable[[], None]
) -> None:
    if program is serializable and database.name == "sqlite":
        pytest.skip("the driver begins no transaction for a SELECT")
    found = run(program, engine, wait)
    expected = dropped(database) | _POSSIBLE.get(program, frozenset())
    assert {one.code for one in found.findings} <= expected, found.report()
    errors = {one.code for one in found.findings if one.severity == "error"}
    assert errors <= dropped(database), found.report()
