"""A TCP proxy that simulates network faults: it cuts, stalls and delays streams, and changes bits."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress

CHUNK_BYTES = 65_536


class FaultProxy:
    """Listens at `port`, and forwards to `target`. The rates are the probabilities of each fault per chunk."""

    def __init__(self, target: int, rng: random.Random) -> None:
        self.target = target
        self.cut_rate = self.corrupt_rate = self.delay_rate = 0.0
        self.faults = 0
        self._rng = rng
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def cut(self) -> None:
        """Close every stream, also in the middle of a frame."""
        self._loop.call_soon_threadsafe(self._break_off)

    def stall(self, seconds: float) -> None:
        """Hold all bytes for some seconds without an error. Bytes sent meanwhile are lost with their stream."""
        asyncio.run_coroutine_threadsafe(self._stall(seconds), self._loop)

    def hold(self) -> None:
        """Hold all bytes in both directions until `release`, without a loss."""
        asyncio.run_coroutine_threadsafe(self._let_pass(False), self._loop).result(10)

    def release(self) -> None:
        """Let the held bytes pass."""
        asyncio.run_coroutine_threadsafe(self._let_pass(True), self._loop).result(10)

    def calm(self) -> None:
        """Stop all faults."""
        self.cut_rate = self.corrupt_rate = self.delay_rate = 0.0

    def close(self) -> None:
        """Stop."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> int:
        self._passing = asyncio.Event()
        self._passing.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._passing is not None
        self._writers.add(writer)
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._passing.wait()
                if self._happens(self.delay_rate):
                    await asyncio.sleep(self._rng.random() * 0.2)
                if self._happens(self.corrupt_rate):
                    position = self._rng.randrange(len(data))
                    data = (
                        data[:position] + bytes([data[position] ^ 1 << self._rng.randrange(8)]) + data[position + 1 :]
                    )
                if self._happens(self.cut_rate):
                    writer.write(data[: self._rng.randrange(len(data))])
                    break
                writer.write(data)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    def _happens(self, rate: float) -> bool:
        happens = self._rng.random() < rate
        self.faults += happens
        return happens

    def _break_off(self) -> None:
        self.faults += 1
        for writer in list(self._writers):
            writer.transport.abort()

    async def _let_pass(self, passes: bool) -> None:
        assert self._passing is not None
        if passes:
            self._passing.set()
        else:
            self._passing.clear()

    async def _stall(self, seconds: float) -> None:
        assert self._passing is not None
        self._passing.clear()
        await asyncio.sleep(seconds)
        self._break_off()
        self._passing.set()

    async def _close(self) -> None:
        self._server.close()
        self._break_off()
        await asyncio.sleep(0.05)
