"""What gRPC in Python costs at all: a bare relay on `grpc.aio`, the server of the package grpcio.

`python -m tests.bench.grpc_relay FOLDER BACKEND_URL`. As `relay`, with the same bodies for the same backend, but that
it is asked by gRPC: it reads the client's message, sends the backend the JSON body of the case, reads the JSON answer
and replies with the message of the case. Messages are bytes to it: protobuf reads none of them.
"""

import asyncio
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import grpc

from tests.bench import grpc_messages as messages
from tests.bench import traffic
from tests.bench.cases import Case
from tests.bench.grpc_client import INFER
from tests.bench.processes import GRPC
from tests.bench.relay import JSON

Bodies = tuple[bytes, bytes]
"""What the backend is sent, and the client."""


class Relay:
    """One backend, one client session."""

    def __init__(self, folder: Path, backend_url: str, session: aiohttp.ClientSession) -> None:
        self._folder = folder
        self._backend_url = backend_url
        self._session = session
        self._bodies: dict[str, Iterator[Bodies]] = {}

    async def infer(self, request: bytes, context: object) -> bytes:
        model = messages.model_of(request)
        if model not in self._bodies:
            self._bodies[model] = itertools.cycle(self._load(model))
        sent, reply = next(self._bodies[model])
        url = f"{self._backend_url}/v2/models/{model}/infer"
        async with self._session.post(url, data=sent, headers=JSON) as response:
            while await response.content.readany():
                pass
        return reply

    def _load(self, model: str) -> list[Bodies]:
        if not traffic.is_of_traffic(model):
            case = Case(self._folder / model)
            return [(bytes(case.backend_request), messages.reply_to_case(case))]
        bodies = []
        for exchange, identity in itertools.islice(traffic.load([model]), traffic.TENSORS):
            reply = messages.reply_to_exchange(exchange, identity or traffic.new_id().encode())
            bodies.append((exchange.sent_on(identity), reply))
        return bodies


async def _serve(folder: Path, backend_url: str) -> None:
    async with aiohttp.ClientSession() as session:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        server = grpc.aio.server(options=unlimited)
        service, _, method = INFER.removeprefix("/").rpartition("/")
        relay = Relay(folder, backend_url, session)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(relay.infer)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"{GRPC}127.0.0.1:{port}", flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2]))
