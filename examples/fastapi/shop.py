"""A web application with FastAPI: the instance is opened with it, a worker runs beside it, requests send and ask.

pip install servicebroker fastapi uvicorn
uvicorn shop:app

curl -X POST 'http://127.0.0.1:8000/orders?item=teapot'
curl 'http://127.0.0.1:8000/shipments'
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request

import servicebroker as sb

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
            await tx.connection.execute(
                "create table if not exists shipments (id bigint generated always as identity, item text not null)"
            )
        app.state.db = db
        async with db.working(stock, concurrency=4):
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def place(item: str, request: Request) -> dict[str, str]:
    """Ask the stock. The request leaves with the COMMIT, so the answer is waited for after the block."""
    db = request.app.state.db
    async with db.transaction() as tx:
        handle = await tx.begin_dialog("//shop/Web", "//shop/Stock", contract="//shop/Ordering")
        await tx.send(handle, "//shop/Order", item)
    messages = await db.receive("WebQueue", conversation_handle=handle, wait=10)
    await db.end_conversation(handle)
    if not messages:
        raise HTTPException(504, "The stock has not answered in time. The order is not lost.")
    return {"answer": messages[0].message_body.decode()}


@app.get("/shipments")
async def shipments(request: Request) -> list[str]:
    """What was shipped."""
    async with request.app.state.db.transaction() as tx:
        rows = await tx.connection.execute("select item from shipments order by id")
        return [item for (item,) in await rows.fetchall()]
