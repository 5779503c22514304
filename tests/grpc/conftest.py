"""What tests of gRPC share: a gateway that speaks it, and its clients."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import tritonclient.grpc.aio as triton

from gateway.demo import JsonServer
from tests.conftest import Client, running


def address_of(client: Client) -> str:
    """Where the gateway of *client* speaks gRPC: host and port."""
    (url,) = client.gateway.grpc_urls
    return url.partition("://")[2]


@asynccontextmanager
async def serving(
    backend_url: str, extra: str = "", backend: str = ""
) -> AsyncIterator[tuple[Client, triton.InferenceServerClient]]:
    """As `running`, with gRPC, and a client of that."""
    async with running(backend_url, f"grpc: 127.0.0.1:0\n{extra}", backend) as client:
        async with triton.InferenceServerClient(address_of(client)) as grpc_client:
            yield client, grpc_client


@pytest.fixture
async def both(server: JsonServer) -> AsyncIterator[tuple[Client, triton.InferenceServerClient]]:
    """A gateway in front of the embedded server: its client of HTTP, and its client of gRPC."""
    async with serving(server.url) as clients:
        yield clients


@pytest.fixture
def grpc_client(both: tuple[Client, triton.InferenceServerClient]) -> triton.InferenceServerClient:
    """A client of gRPC of a gateway in front of the embedded server."""
    return both[1]
