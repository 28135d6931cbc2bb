"""A web application with FastAPI: the instance is opened with it, a worker runs beside it, requests send and ask.

pip install servicebroker fastapi uvicorn
uvicorn shop:app

curl -X POST 'http://127.0.0.1:8000/orders?item=teapot'
curl 'http://127.0.0.1:8000/orders/THE_NUMBER_OF_THE_ORDER'
curl 'http://127.0.0.1:8000/shipments'

No conversation ends before its answer: the worker's reply would fail with 8429, and its work would be undone.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

from fastapi import FastAPI, HTTPException, Request, Response

import servicebroker as sb

PATIENCE_S = 10.0  # a request waits so long for the answer
KEPT_S = 3600.0  # an answer that nobody asks for is kept so long

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
        collecting = asyncio.create_task(collect(db))
        try:
            async with db.working(stock, concurrency=4):
                yield
        finally:
            collecting.cancel()
            with suppress(asyncio.CancelledError):
                await collecting


async def collect(db: sb.AsyncDatabase) -> None:
    """End the conversations whose answer nobody has asked for, until it is cancelled."""
    while True:
        await asyncio.sleep(KEPT_S / 10)
        try:
            async with db.transaction() as tx:
                rows = await tx.connection.execute(
                    "select distinct conversation_handle from shop_dbo.webqueue "
                    "where message_enqueue_time < now() - make_interval(secs => %s)",
                    (KEPT_S,),
                )
                for (handle,) in await rows.fetchall():
                    if await tx.receive("WebQueue", conversation_handle=handle):
                        await tx.end_conversation(handle)
        except Exception:
            logging.exception("The answers that nobody has asked for are collected later.")


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def place(item: str, request: Request, response: Response) -> dict[str, str]:
    """Ask the stock. The request leaves with the COMMIT, so the answer is waited for after the block."""
    async with request.app.state.db.transaction() as tx:
        handle = await tx.begin_dialog("//shop/Web", "//shop/Stock", contract="//shop/Ordering")
        await tx.send(handle, "//shop/Order", item)
    return await answer(handle, request, response)


@app.get("/orders/{handle}")
async def answer(handle: UUID, request: Request, response: Response) -> dict[str, str]:
    """What the stock has answered; 202 while it has not. Whoever has the answer ends the conversation."""
    db = request.app.state.db
    try:
        messages = await db.receive("WebQueue", conversation_handle=handle, wait=PATIENCE_S)
    except sb.BrokerError as refused:
        raise HTTPException(404, f"There is no such order, or its answer was given: {refused}") from None
    if not messages:
        response.status_code = 202
        return {"order": str(handle)}
    await db.end_conversation(handle)
    if messages[0].message_type_name == sb.ERROR:
        raise HTTPException(502, f"The stock has refused the order: {sb.read_error(messages[0].message_body)[1]}")
    return {"order": str(handle), "answer": messages[0].message_body.decode()}


@app.get("/shipments")
async def shipments(request: Request) -> list[str]:
    """What was shipped."""
    async with request.app.state.db.transaction() as tx:
        rows = await tx.connection.execute("select item from shipments order by id")
        return [item for (item,) in await rows.fetchall()]
