"""The server's side of the workbench: one process, one request at a time, killed where it takes too long."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from psyco._src.core.errors import RequirementError, RunError

SECONDS = 300.0  # time limit of a request, compiling included
MAX_WAITING = 8  # requests
MAX_ANSWER_BYTES = 32 * 2**20


class WorkbenchError(RequirementError):
    """An error of the workbench, with the place in the requirement if it has one."""

    def __init__(self, text: str, line: int | None, column: int | None) -> None:
        super().__init__(text)
        self.at = (line, column)


class Workbench:
    """A process that makes environments; it starts with the first request, and again after it was killed."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self.lock = asyncio.Lock()
        self.waiting = 0

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; raise RunError or WorkbenchError."""
        if self.waiting >= MAX_WAITING:
            raise RunError("the environment is busy with earlier requests; try again in a moment")
        self.waiting += 1
        try:
            async with self.lock:
                found = await self._exchange(request)
        finally:
            self.waiting -= 1
        if "error" in found:
            raise WorkbenchError(str(found["error"]), found.get("line"), found.get("column"))
        return found

    async def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            process = self.process = self.process or await self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
            line = await asyncio.wait_for(process.stdout.readline(), SECONDS)
            if not line:
                raise OSError("the process ended")
            found: dict[str, Any] = json.loads(line)
            return found
        except TimeoutError:
            await self.close()
            raise RunError(f"the environment took more than {SECONDS:.0f} s and was stopped") from None
        except (OSError, ValueError):
            await self.close()
            raise RunError("the process of the environment ended unexpectedly; try again, or see psyco check") from None
        except asyncio.CancelledError:  # its answer would be taken for that of the next request
            await self.close()
            raise

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "psyco._src.studio.workbench",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_ANSWER_BYTES,
        )  # fmt: skip

    async def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
