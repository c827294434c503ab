"""Connections with time limits, which uvicorn lacks for a request that arrives byte by byte."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from psyco._src.reports import live_server


class ShortConnection(H11Protocol):
    """A connection of a live page: a few seconds for its only request, and a time limit in total."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the time limits."""
        super().connection_made(transport)
        self.limits = [
            self.loop.call_later(live_server.REQUEST_SECONDS, self._drop_idle),
            self.loop.call_later(live_server.CONNECTION_SECONDS, transport.abort),
        ]

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limits."""
        for limit in self.limits:
            limit.cancel()
        super().connection_lost(exc)

    def _drop_idle(self) -> None:
        if self.cycle is None:  # no request has arrived
            self.transport.abort()


class KeptConnection(H11Protocol):
    """A connection for many requests; the head of each arrives within two times `REQUEST_SECONDS`.

    uvicorn itself closes one on which nothing happens after an answer.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start to look."""
        super().connection_made(transport)
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        self.look.cancel()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        self.look = self.loop.call_later(live_server.REQUEST_SECONDS, self._drop_half_sent, self.cycle)

    def _drop_half_sent(self, before: RequestResponseCycle | None) -> None:
        """Drop the connection if its first request, or the bytes of a later one, have not become a request."""
        cycle = self.cycle
        if cycle is None or (cycle.response_complete and cycle is before and self.conn.trailing_data[0]):
            self.transport.abort()
        else:
            self._look_again()
