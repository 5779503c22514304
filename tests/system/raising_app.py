"""An ASGI application that fails as those of FastAPI and Starlette do: it answers a whole 500, and then raises.

uvicorn logs what was raised, and then closes the connection, which it had not announced. To all but model `raising` it
answers with the request's own body.
"""

from collections.abc import Awaitable, Callable
from typing import Any

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class ModelError(Exception):
    """What an inference of model `raising` ends with."""


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Serve one request."""
    if scope["type"] != "http":
        return
    body, goes_on = b"", True
    while goes_on:
        event = await receive()
        if event["type"] != "http.request":
            return
        body += event.get("body", b"")
        goes_on = event.get("more_body", False)
    fails = "/raising/" in scope["path"]
    text = b'{"detail":"Internal Server Error"}' if fails else _answer(scope["path"], body)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 500 if fails else 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})
    if fails:
        raise ModelError("this model always fails")


def _answer(path: str, body: bytes) -> bytes:
    """An inference's inputs as its outputs; anything else as it is."""
    return body.replace(b'"inputs"', b'"outputs"') if path.endswith("/infer") else body or b"{}"
