"""The HTTP interface.  A client may send each request again after a lost connection."""

from datetime import datetime, timezone
from typing import Annotated

from fastapi import FastAPI, Header, Path, Request
from fastapi.responses import JSONResponse
from pydantic import Field
from sqlalchemy.exc import NoResultFound

from sa_doclock import DocLockError, LockFailed
from shop import orders

app = FastAPI(title="Shop")

# Values that do not fit get the answer 422, and never reach a table.
Ident = Annotated[str, Path(pattern="^[A-Za-z0-9-]{1,36}$")]
Key = Annotated[str, Header(min_length=1, max_length=100)]
ItemId = Annotated[int, Field(ge=1, le=2**31 - 1)]
Quantity = Annotated[int, Field(strict=True, ge=1, le=1000)]
Basket = Annotated[dict[ItemId, Quantity], Field(min_length=1, max_length=100)]


@app.put("/orders/{ident}")
def place(ident: Ident, basket: Basket) -> dict[str, int]:
    return {"total": orders.place(ident, basket)}


@app.get("/orders/{ident}")
def show(ident: Ident) -> dict[str, object]:
    return orders.show(ident)


@app.post("/orders/{ident}/payment")
def pay(ident: Ident, idempotency_key: Key) -> dict[str, int]:
    year = datetime.now(timezone.utc).year
    return {"invoice": orders.pay(ident, idempotency_key, year)}


@app.delete("/orders/{ident}")
def cancel(ident: Ident) -> dict[str, str]:
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
