"""The HTTP application: routes, keys, CORS, errors, and the page."""

from __future__ import annotations

import hmac
import mimetypes
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specedge.runtime.drafters.registry import runnable
from specedge.runtime.options import DRAFTERS, DrafterOptions

from . import openai
from .failures import Failure, failure_of
from .realtime import realtime
from .service import ABOUT, Service

_OPEN_PATHS = ("/health", "/ready")
_PAGE = Path(__file__).parent / "page"
_CSP = (
    "default-src 'self'; media-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
mimetypes.add_type("text/javascript", ".js")  # some systems have another, with which browsers refuse a module
_KEY_PROTOCOL = "openai-insecure-api-key."


def make_app(service: Service) -> Starlette:
    """The application over `service`."""
    settings = service.settings
    routes: list[BaseRoute] = []
    for task, name in (("transcribe", "transcriptions"), ("translate", "translations")):
        for prefix in ("/v1", ""):
            routes.append(Route(f"{prefix}/audio/{name}", partial(openai.endpoint, task=task), methods=["POST"]))
    routes += [
        Route("/v1/models", _models),
        Route("/v1/models/{name:path}", _model),
        Route("/v1/specedge/drafters", _drafters),
        Route("/inference", openai.inference, methods=["POST"]),
        Route("/asr", openai.asr, methods=["POST"]),
        Route("/health", _health),
        Route("/ready", _ready),
        Route("/metrics", _metrics),
        WebSocketRoute("/v1/realtime", realtime),
    ]
    pages = {f"/{path.name}" for path in _PAGE.glob("*.*")} | {"/"} if settings.page and _PAGE.is_dir() else set()
    routes += [Route(path, _page) for path in sorted(pages)]
    middleware = [Middleware(_Guard, service=service, pages=pages)]
    if settings.cors:
        cors: dict[str, Any] = {
            "allow_methods": ["*"],
            "allow_headers": ["*"],
            "expose_headers": ["x-request-id", "retry-after"],
        }
        middleware.insert(0, Middleware(CORSMiddleware, allow_origins=list(settings.cors), **cors))
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={404: _refuse, 405: _refuse})
    app.router.redirect_slashes = False
    app.state.service = service
    return app


class _Guard:
    """In front of every route: keys, a request's id, and every error in OpenAI's shape."""

    def __init__(self, app: ASGIApp, service: Service, pages: set[str]) -> None:
        self._app, self._service, self._pages = app, service, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id_, status, started_s = secrets.token_hex(8), 0, time.perf_counter()
        scope[ABOUT] = {}

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", id_.encode())]
                self._service.metrics.count_request(message["status"])
            await send(message)

        try:
            self._check_key(HTTPConnection(scope))
            await self._app(scope, receive, send_on)
        except ClientDisconnect:
            return
        except Exception as error:
            failure = failure_of(error, f"request {id_}")
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": failure.code})
            elif not status:
                await JSONResponse(failure.body(), failure.status, dict(failure.headers))(scope, receive, send_on)
        finally:
            about = {**scope[ABOUT], "taken_s": time.perf_counter() - started_s}
            if scope["path"] not in _OPEN_PATHS:
                self._service.log(f"{scope.get('method', 'WS')} {scope['path'][:80]}", about, status or "closed")

    def _check_key(self, connection: HTTPConnection) -> None:
        """Raise Failure for a page of another site, and for a client without a key where one is needed."""
        scope, cors, keys = connection.scope, self._service.settings.cors, self._service.settings.api_keys
        if scope["type"] == "websocket":  # for which browsers ask nobody whether a page of another site may open it
            origin, host = connection.headers.get("origin"), connection.headers.get("host", "")
            if origin and origin.partition("://")[2] != host and origin not in cors and "*" not in cors:
                raise Failure(403, "origin_refused", "this page may not connect: allow its origin with --cors")
        if not keys or scope["path"] in _OPEN_PATHS or scope["path"] in self._pages:
            return
        given = _key_of(connection).encode()
        if not any([hmac.compare_digest(given, key.encode()) for key in keys]):
            raise Failure(401, "invalid_api_key", "no API key, or a wrong one: send Authorization: Bearer KEY")


async def _refuse(request: Request, error: Exception) -> Response:
    """Starlette found no route, or none for this method: that too is told in OpenAI's shape."""
    if getattr(error, "status_code", None) == 405:
        raise Failure(405, "method_not_allowed", f"{request.method[:10]} is not for this path")
    failure = Failure(404, "not_found", "")
    there = ", ".join(sorted({route.path for route in request.app.routes if route.endpoint is not _page}))
    failure.message = f"there is nothing at {request.url.path[:80]!r}; there are {there}"  # no files, but with slashes
    raise failure


def _key_of(connection: HTTPConnection) -> str:
    kind, _, key = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return key.strip()
    # Not from the header, which uvicorn takes out with wsproto.
    for protocol in connection.scope.get("subprotocols", ()):
        if protocol.startswith(_KEY_PROTOCOL):
            return str(protocol.removeprefix(_KEY_PROTOCOL))
    return ""


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "specedge"}


async def _models(request: Request) -> Response:
    service: Service = request.app.state.service
    return JSONResponse({"object": "list", "data": [_card(name) for name in service.models.names]})


async def _model(request: Request) -> Response:
    service: Service = request.app.state.service
    return JSONResponse(_card(service.models.name_of(request.path_params["name"])))


async def _drafters(request: Request) -> Response:
    service: Service = request.app.state.service
    name = service.models.name_of(request.query_params.get("model", ""))
    async with service.models.use(name) as model:
        able = {*runnable(model.bundle, DrafterOptions()), "auto"}
    first = ("auto", "none")
    drafters = [*first, *(drafter for drafter in DRAFTERS if drafter in able - {*first})]
    return JSONResponse({"drafters": drafters, "default": service.settings.drafter})


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _ready(request: Request) -> Response:
    service: Service = request.app.state.service
    try:
        service.check()
    except Failure as failure:
        status = "ending" if service.is_ending else "full"
        return JSONResponse({"status": status}, 503, dict(failure.headers))
    return JSONResponse({"status": "ready"})


async def _metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    return PlainTextResponse(service.metrics.text())


async def _page(request: Request) -> Response:
    name = request.url.path.lstrip("/") or "index.html"
    response = await StaticFiles(directory=_PAGE).get_response(name, request.scope)
    # no-cache: its files belong together, so that after an update none may be of before.
    about = {"Content-Security-Policy": _CSP, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    response.headers.update(about)
    return response
