"""What both servers share: one address, limits, and errors that are one sentence of JSON."""

import asyncio
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from cop2l.errors import UserError, missing_extra, printable

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise missing_extra(error.name or "starlette", "serve", "A server") from None

__all__ = [
    "Alone", "JSONResponse", "Problem", "Request", "Response", "StreamingResponse", "application", "posted", "run",
    "run_in_threadpool",
]  # fmt: skip
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WAIT = 30.0
"""Seconds that a request may take to arrive, to wait for its turn, or to take no more of its answer."""
CONNECTIONS = 64
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
NOT_HERE = {404: "There is nothing at {path}; see {home}.", 405: "{path} does not take {method}; see {home}."}
Endpoint = Callable[[Request], Awaitable[Response]]


class Problem(Exception):  # noqa: N818
    """What is wrong with a request, in one sentence, and its status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Connection(H11Protocol):
    """uvicorn's connection, but cut after WAIT seconds in which it is not being answered, or does not take its answer.

    uvicorn waits for ever for the rest of a request's head: as many as there may be connections would shut everybody out.
    """

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It begins."""
        super().connection_made(transport)
        self._look()

    def handle_events(self) -> None:
        """Something came."""
        super().handle_events()
        self._look()

    def on_response_complete(self) -> None:
        """A request was answered."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The answer is not taken."""
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        """It is."""
        super().resume_writing()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """It ends."""
        super().connection_lost(exc)
        self._look(ended=True)

    def _look(self, ended: bool = False) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        idle = not ended and (not answering or self.flow.write_paused)
        if self._end is not None and not idle:
            self._end.cancel()
            self._end = None
        elif self._end is None and idle:
            self._end = self.loop.call_later(WAIT, self.transport.abort)


class Alone:
    """Work in a thread, one piece at a time; who waits too long is sent away before anything was done."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """The result of work(*arguments)."""
        try:
            async with asyncio.timeout(WAIT):
                await self._lock.acquire()
        except TimeoutError:
            raise Problem(503, "The server is busy; nothing was done: try again later.") from None
        try:
            return await run_in_threadpool(work, *arguments)
        finally:
            self._lock.release()


def application(routes: dict[str, tuple[str, Endpoint]], host: str) -> Starlette:
    """An application from paths, each with its method (GET or POST) and its function."""
    made = [
        Route(path, _answered(endpoint, host), methods=[method])
        for path, (method, endpoint) in routes.items()
    ]
    app = Starlette(routes=made, exception_handlers={HTTPException: _not_here})
    app.router.redirect_slashes = False  # it would send people to whatever name they asked for
    return app


def _answered(endpoint: Endpoint, host: str) -> Endpoint:
    """The endpoint with errors as sentences. On loopback the name that was asked for must be loopback's: a page of another site
    whose name was made to point here is not answered.
    """

    async def answer(request: Request) -> Response:
        try:
            if _is_loopback(host) and _name(request) not in (*LOOPBACK, host):
                raise Problem(421, "This server answers under its own address only: 127.0.0.1 or localhost.")
            response = await endpoint(request)
        except Problem as problem:
            response = failed(problem.status, str(problem))
        except UserError as error:
            response = failed(422, str(error))
        except ClientDisconnect:
            response = failed(400, "The request ended before it was complete.")
        except Exception as error:
            said = f"{request.scope['path'][:100]}: {type(error).__name__}: {error!s:.500}"
            print(printable(said), file=sys.stderr, flush=True)
            response = failed(500, "Something went wrong inside the server; its own messages say what.")
        response.headers.update(HEADERS)
        return response

    return answer


def _is_loopback(host: str) -> bool:
    """Whether an address is this machine's alone."""
    try:
        return host in LOOPBACK or ipaddress.ip_address(host).is_loopback
    except ValueError:  # the name of a machine
        return False


def _name(request: Request) -> str:
    """The name that was asked for, without its port; whatever it is."""
    asked = request.headers.get("host", "")
    return (asked if asked.endswith("]") else asked.rpartition(":")[0] or asked).strip("[]")


def failed(status: int, sentence: str) -> Response:
    """An error, in one sentence."""
    return JSONResponse({"error": sentence}, status, HEADERS)


async def _not_here(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    words = NOT_HERE.get(status, "The request cannot be answered; see {home}.")
    return failed(status, words.format(path=request.scope["path"][:100], method=request.method, home="GET /"))


async def posted(request: Request, most: int) -> bytes:
    """The body of a request, no longer than `most` bytes; it must say that it is JSON, which pages of other sites may not."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "Send JSON, with the header Content-Type: application/json.")
    found, size = bytearray(), 0
    try:
        async with asyncio.timeout(WAIT):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    found += part
                elif size > 8 * most:  # until then it is read on: who is still sending does not hear
                    break
    except TimeoutError:
        raise Problem(408, f"The body did not arrive within {WAIT:g} seconds.") from None
    if size > most:
        raise Problem(413, f"The body is larger than {most} bytes; send fewer rows at once.")
    return bytes(found)


def listening(host: str, port: int) -> socket.socket:
    """The open address; a sentence if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not 0 <= port < 2**16:
        raise UserError(f"--port must be a number from 0 to {2**16 - 1}, not {port}.")
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = (
            os.strerror(error.errno) if error.errno and error.errno > 0 else error
        )  # names are not errors of the system
        raise UserError(
            f"Cannot listen on {host}, port {port} ({why}); choose another with --port or --host."
        ) from None


def run(app: Any, host: str, port: int, what: str) -> None:
    """Answer until Ctrl-C or SIGTERM; what is being answered then is answered first."""
    opened = listening(host, port)
    server = uvicorn.Server(config(app))
    app.state.ending = lambda: server.should_exit
    shown = f"[{host}]" if ":" in host else host
    print(f"{what} at http://{shown}:{opened.getsockname()[1]}/ (Ctrl-C stops it)", flush=True)
    if not _is_loopback(host):
        print(
            "Whoever reaches this machine can use it: there is no login and no encryption.",
            file=sys.stderr,
            flush=True,
        )

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        server.run(sockets=[opened])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        opened.close()
    print("Stopped.", flush=True)


def config(app: Any) -> uvicorn.Config:
    """How uvicorn serves an application."""
    return uvicorn.Config(
        app,
        http=Connection,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
    )
