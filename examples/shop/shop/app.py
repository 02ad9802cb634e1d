"""The HTTP interface.  Each request may be sent again after a lost connection."""

from datetime import datetime, timezone
from typing import Annotated

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from sqlalchemy.exc import NoResultFound

from sa_doclock import DocLockError, LockFailed
from shop import orders

app = FastAPI(title="Shop")


@app.put("/orders/{ident}")
def place(ident: str, basket: dict[int, int]) -> dict[str, int]:
    return {"total": orders.place(ident, basket)}


@app.get("/orders/{ident}")
def show(ident: str) -> dict[str, object]:
    return orders.show(ident)


@app.post("/orders/{ident}/payment")
def pay(ident: str, idempotency_key: Annotated[str, Header()]) -> dict[str, int]:
    year = datetime.now(timezone.utc).year
    return {"invoice": orders.pay(ident, idempotency_key, year)}


@app.delete("/orders/{ident}")
def cancel(ident: str) -> dict[str, str]:
    orders.cancel(ident)
    return {"state": "cancelled"}


@app.exception_handler(orders.Refused)
def refused(_request: Request, error: orders.Refused) -> JSONResponse:
    return JSONResponse({"refused": str(error)}, 409)


@app.exception_handler(NoResultFound)
def not_found(_request: Request, _error: NoResultFound) -> JSONResponse:
    return JSONResponse({"refused": "there is no such order"}, 404)


@app.exception_handler(LockFailed)
def busy(_request: Request, error: DocLockError) -> JSONResponse:
    return JSONResponse({"busy": error.ident}, 503, {"Retry-After": "1"})
