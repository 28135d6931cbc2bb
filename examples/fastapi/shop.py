"""A web application with FastAPI: the instance is opened with it, a worker runs beside it, requests send and ask.

pip install servicebroker fastapi uvicorn
uvicorn shop:app

curl -X POST 'http://127.0.0.1:8000/orders?item=teapot'
curl 'http://127.0.0.1:8000/orders/THE_NUMBER_OF_THE_ORDER'
curl 'http://127.0.0.1:8000/shipments'

A request that times out undoes nothing: the worker goes on, and the answer is kept for KEPT_S.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from fastapi import FastAPI, HTTPException, Request, Response

import servicebroker as sb

log = logging.getLogger("shop")
PATIENCE_S = 10.0  # a request waits so long for the answer
KEPT_S = 3600.0  # an answer that comes later is kept so long for who asks for it

APPLICATION: dict[str, Any] = {
    "message_types": {"//shop/Order": "NONE", "//shop/Answer": "NONE"},
    "contracts": {"//shop/Ordering": {"//shop/Order": "INITIATOR", "//shop/Answer": "TARGET"}},
    "queues": {"WebQueue": {}, "StockQueue": {}},
    "services": {
        "//shop/Web": {"queue": "WebQueue"},
        "//shop/Stock": {"queue": "StockQueue", "contracts": ["//shop/Ordering"]},
    },
}

stock = sb.Worker("StockQueue")


@stock.on("//shop/Order")
async def order(tx: sb.AsyncTransaction, message: sb.Message) -> None:
    """The row and the answer are committed together, with the RECEIVE."""
    item = (message.message_body or b"").decode()
    await tx.connection.execute("insert into shipments (item) values (%s)", (item,))
    await tx.send(message.conversation_handle, "//shop/Answer", f"{item} is on its way")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The instance is open, and the worker runs, as long as the application does."""
    async with sb.open_async(os.environ.get("SERVICEBROKER_INSTANCE", "servicebroker-data")) as instance:
        db = await instance.database("Shop", create=True)
        await db.define(APPLICATION)
        async with db.transaction() as tx:
            await tx.connection.execute("select pg_advisory_xact_lock(1)")  # of several processes that start at once
            await tx.connection.execute(
                "create table if not exists shipments (id bigint generated always as identity, item text not null)"
            )
        app.state.db = db
        async with db.working(stock, concurrency=4):
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def place(item: str, request: Request, response: Response) -> dict[str, str]:
    """Ask the stock."""
    db: sb.AsyncDatabase = request.app.state.db
    asked = db.request(
        "//shop/Web",
        "//shop/Stock",
        "//shop/Order",
        item,
        contract="//shop/Ordering",
        timeout=PATIENCE_S,
        keep=KEPT_S,
    )
    return await told(asked, response)


@app.get("/orders/{handle}")
async def answer(handle: UUID, request: Request, response: Response) -> dict[str, str]:
    """Return the answer of the stock to an order that was told 202."""
    db: sb.AsyncDatabase = request.app.state.db
    try:
        return await told(db.wait_for_answer(handle, timeout=PATIENCE_S), response)
    except sb.BrokerError as refused:
        log.info("The answer to %s was not found: %s", handle, refused)
        raise HTTPException(404, "There is no such order, or its answer was given.") from None


async def told(asked: Awaitable[sb.Message], response: Response) -> dict[str, str]:
    """Wait for an answer: 202 and the number of the order while there is none, 502 if the stock has refused."""
    try:
        answered = await asked
    except sb.RequestTimeout as late:
        response.status_code = 202
        return {"order": str(late.handle)}
    except sb.RequestError as failed:
        log.error("The stock has refused an order: %s", failed)
        raise HTTPException(502, "The stock has refused the order.") from None
    return {"order": str(answered.conversation_handle), "answer": (answered.message_body or b"").decode()}


@app.get("/shipments")
async def shipments(request: Request) -> list[str]:
    """Return the items that were shipped."""
    async with request.app.state.db.transaction() as tx:
        rows = await tx.connection.execute("select item from shipments order by id")
        return [item for (item,) in await rows.fetchall()]
