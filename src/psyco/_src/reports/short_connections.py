"""Connections of a live page: each has a few seconds to send its request, and a time limit in total."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from psyco._src.reports import live_server


class ShortConnection(H11Protocol):
    """A connection with time limits, which uvicorn lacks for a request that arrives byte by byte."""

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
