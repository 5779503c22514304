"""Bytes in are bytes out, in both directions, for requests of every form that pass through as they come."""

import gzip
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gateway.policy.crossing import HOP_BY_HOP
from gateway.serving.relaying import UPLOAD_BYTES, WHOLE_BYTES
from tests.conftest import HEADER_LENGTH, running
from tests.system.scripted import RawReply, Seen, Wire, counting, total, wire

N_REQUESTS = 60
SIZES = (0, 1, 1000, UPLOAD_BYTES - 200, UPLOAD_BYTES, 300_000, WHOLE_BYTES - 200, WHOLE_BYTES, 3_000_000)
CODINGS: dict[str, Callable[[bytes], bytes]] = {"gzip": lambda body: gzip.compress(body, 1), "deflate": zlib.compress}
VENDOR = "application/vnd.sagemaker-triton.binary+json"
RENAMING = "routes:\n  - {name: renamed, models: [public], backend: main, rename: {public: m}}\n"
RENAMING += "  - {name: rest, backend: main}\n"


@dataclass
class Case:
    """One request and its answer."""

    form: str
    """How it says where its JSON ends."""
    header: bytes
    blob: bytes
    coding: str
    model: str
    request_in_chunks: bool
    answer_header: bytes
    answer_blob: bytes
    answer_framing: str

    @classmethod
    def draw(cls, draw: random.Random) -> "Case":
        blob = draw.randbytes(draw.choice(SIZES))
        entry = {"name": "x", "datatype": "UINT8", "shape": [len(blob)], "parameters": {"binary_data_size": len(blob)}}
        form = draw.choice(("length", "length", "length", "missing", "raw", "vendor"))
        return cls(
            form,
            b"" if form == "raw" else json.dumps({"inputs": [entry], "padding": " " * draw.randrange(300)}).encode(),
            blob or b"\0" if form == "raw" else blob,
            draw.choice(("", "", "gzip", "deflate")),
            draw.choice(("m", "public")),
            draw.random() < 0.3,
            json.dumps({"model_name": "m", "outputs": [], "é": "{" * draw.randrange(300)}).encode(),
            draw.randbytes(draw.choice(SIZES)),
            draw.choice(("length", "length", "chunks", "end")),
        )

    def request(self, id_: int, draw: random.Random) -> tuple[bytes, int]:
        """As it stands on the wire, and how long its body is there."""
        body = self.header + self.blob
        fields = [f"POST /v2/models/{self.model}/infer?id={id_} HTTP/1.1", "Host: x", f"X-Id: {id_}"]
        if self.coding:
            body = CODINGS[self.coding](body)
            fields.append(f"Content-Encoding: {self.coding}")
        if self.form in ("length", "raw"):
            fields.append(f"{HEADER_LENGTH}: {len(self.header)}")
        if self.form == "vendor":
            fields.append(f"Content-Type: {VENDOR};json-header-size={len(self.header)}")
        fields.append("Transfer-Encoding: chunked" if self.request_in_chunks else f"Content-Length: {len(body)}")
        framed = in_chunks(body, draw) if self.request_in_chunks else body
        return "\r\n".join([*fields, "", ""]).encode() + framed, len(body)

    async def answer(self, seen: Seen, draw: random.Random) -> bool:
        """Answer *seen*; whether its connection stays open."""
        body = self.answer_header + self.answer_blob
        fields = ["HTTP/1.1 200 OK", f"{HEADER_LENGTH}: {len(self.answer_header)}", "X-Own: a, b", "Keep-Alive: 1"]
        if self.answer_framing == "length":
            fields.append(f"Content-Length: {len(body)}")
        elif self.answer_framing == "chunks":
            fields.append("Transfer-Encoding: chunked")
            body = in_chunks(body, draw)
        await seen.peer.send("\r\n".join([*fields, "", ""]).encode() + body)
        return self.answer_framing != "end"

    def check_request(self, seen: Seen) -> None:
        """The server got what the client sent, and headers that tell how it is to be read."""
        assert seen.body == self.header + self.blob
        assert seen.target.startswith("/v2/models/m/infer?id=")
        is_json = self.form == "missing" and not self.blob
        assert seen.values(HEADER_LENGTH) == ([] if is_json else [str(len(self.header))])
        assert len(seen.values("Content-Type")) == 1
        assert seen.values("Content-Encoding") == []
        assert seen.values("X-Id") == [seen.id]
        framing = len(seen.values("Content-Length")), len(seen.values("Transfer-Encoding"))
        assert framing in ((1, 0), (0, 1))
        for name in HOP_BY_HOP - {"transfer-encoding"}:
            assert seen.values(name) == []

    def check_reply(self, reply: RawReply) -> None:
        """The client got what the server answered, with its own name of the model."""
        assert reply.status == 200, reply.body[:300]
        (said,) = reply.values(HEADER_LENGTH)
        header, blob = reply.body[: int(said)], reply.body[int(said) :]
        assert blob == self.answer_blob
        if self.model == "m":
            assert header == self.answer_header
        else:
            assert json.loads(header) == {**json.loads(self.answer_header), "model_name": self.model}
        assert reply.values("X-Own") == ["a, b"]
        assert reply.values("Keep-Alive") == []
        assert (self.form == "vendor") == (reply.values("Content-Type") == [f"{VENDOR};json-header-size={said}"])


def in_chunks(body: bytes, draw: random.Random) -> bytes:
    """*body*, chunked, cut anywhere."""
    size = max(1, len(body) // draw.randrange(1, 40))
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def sent_in_pieces(connection: Wire, message: bytes, draw: random.Random) -> None:
    """Send *message*, cut anywhere."""
    start = 0
    while start < len(message):
        end = start + draw.choice((1, 100, 70_000, 1_000_000))
        await connection.send(message[start:end])
        start = end


@pytest.mark.parametrize("seed", range(2))
async def test_bytes_in_are_bytes_out(seed: int) -> None:
    draw = random.Random(seed)
    cases: list[Case] = []

    async def behave(seen: Seen) -> bool:
        case = cases[int(seen.id)]
        case.check_request(seen)
        seen.body = b""
        return await case.answer(seen, draw)

    sent = received = 0
    async with counting(behave) as backend, running(backend.url, RENAMING, "binary: always") as client:
        while len(cases) < N_REQUESTS:
            async with wire(client.url) as connection:
                keeps = True
                while keeps and len(cases) < N_REQUESTS:
                    case = Case.draw(draw)
                    cases.append(case)
                    message, n_bytes = case.request(len(cases) - 1, draw)
                    await sent_in_pieces(connection, message, draw)
                    reply = await connection.reply()
                    case.check_reply(reply)
                    keeps = reply.values("Connection") == []
                    assert keeps is not case.request_in_chunks
                    sent, received = sent + n_bytes, received + len(reply.body)
        metrics = await client.metrics()
        assert client.gateway.data_plane.gateway.admission.held_bytes == 0
    assert [seen.id for seen in backend.seen] == [str(id_) for id_ in range(N_REQUESTS)]
    assert total(metrics, "client_request_bytes_sum") == sent
    assert total(metrics, "client_response_bytes_sum") == received
    plain = sum(len(case.header) + len(case.blob) for case in cases)
    answered = sum(len(case.answer_header) + len(case.answer_blob) for case in cases)
    assert total(metrics, "upstream_request_bytes_sum") == plain
    assert total(metrics, "upstream_response_bytes_sum") == answered
