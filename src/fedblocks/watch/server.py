"""The live page: the report, served to this machine alone, and told when there is something new."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedblocks.core.errors import UserError
from fedblocks.core.requirements import require_for_watching
from fedblocks.reports.html.page import TEMPLATES, chart_script, page, policy
from fedblocks.watch.look import Seen, Watched

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK = "127.0.0.1"
EVERY = 0.5  # seconds between two looks
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Live:
    """A server of one folder; only who knows its address, with the token in it, sees anything."""

    def __init__(self, path: Path, port: int = 0) -> None:
        require_for_watching()
        self.watched, self.script = Watched(path), chart_script()
        self.watched.look()  # what is wrong with the folder is said before anything is served
        self.token = secrets.token_urlsafe(24)
        self.socket = _listen(port)
        self.port: int = self.socket.getsockname()[1]
        self.url = f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def server(self) -> uvicorn.Server:
        """Ready to run."""
        import uvicorn

        settings = uvicorn.Config(
            self.app(),
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            ws="none",
        )
        return uvicorn.Server(settings)

    def run(self) -> None:
        """Serve until Ctrl-C."""
        self.server().run(sockets=[self.socket])

    def app(self) -> Starlette:
        """Two things to get, and nothing else."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        async def whole(request: Request) -> Response:
            return await self._answer(
                request, lambda seen: page(seen.content, self.script, "events")
            )

        async def events(request: Request) -> Response:
            from starlette.responses import StreamingResponse

            if not self._known(request):
                return _nothing()
            return StreamingResponse(
                self._events(request), media_type="text/event-stream", headers=HEADERS
            )

        async def elsewhere(request: Request, error: Exception) -> Response:
            return _nothing()

        routes = [
            Route("/{token}/", whole, methods=["GET"]),
            Route("/{token}/events", events, methods=["GET"]),
        ]
        app = Starlette(routes=routes, exception_handlers={404: elsewhere, 405: elsewhere})
        app.router.redirect_slashes = False  # an address is right or wrong
        return app

    async def _answer(self, request: Request, render: Callable[[Seen], str]) -> Response:
        from starlette.responses import HTMLResponse, PlainTextResponse

        if not self._known(request):
            return _nothing()
        try:
            text = await asyncio.to_thread(lambda: render(self.watched.look()))
        except UserError as error:
            return PlainTextResponse(f"{error}\n", 503, headers=HEADERS)
        own = (TEMPLATES / "report.js").read_text(encoding="utf-8")
        rules = f"{policy(self.script, own, live=True)}; frame-ancestors 'none'"
        return HTMLResponse(text, headers={**HEADERS, "Content-Security-Policy": rules})

    async def _events(self, request: Request) -> AsyncIterator[str]:
        """Everything that is new, as soon as it is; a comment now and then keeps the line open."""
        last = ""
        while not await request.is_disconnected():
            try:
                seen = await asyncio.to_thread(self.watched.look)
            except UserError as error:
                yield _event("trouble", json.dumps({"message": error.message}))
            else:
                yield (
                    ":\n\n"
                    if seen.version == last
                    else _event("content", await asyncio.to_thread(seen.as_json))
                )
                last = seen.version
            await asyncio.sleep(EVERY)

    def _known(self, request: Request) -> bool:
        """Whether the address is ours: the token, and no foreign name that somebody
        pointed at this machine.
        """
        hosts = {f"{LOOPBACK}:{self.port}", f"localhost:{self.port}"}
        token = str(request.path_params.get("token", ""))
        return (
            secrets.compare_digest(token.encode(), self.token.encode())
            and request.headers.get("host") in hosts
        )


def _listen(port: int) -> socket.socket:
    """A port of this machine that nobody outside can reach; 0: any that is free."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        raise UserError(
            f"cannot use port {port}: {getattr(error, 'strerror', None) or error}",
            "choose another --port",
        ) from error
    return listener


def _event(kind: str, data: str) -> str:
    return f"event: {kind}\ndata: {data}\n\n"


def _nothing() -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(
        "nothing here: use the address that `fedblocks watch` printed\n", 404, headers=HEADERS
    )
