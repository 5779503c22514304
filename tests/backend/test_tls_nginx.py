"""TLS towards a real nginx, which sends its session tickets by itself; skipped where there is none."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.backend.asking import Body
from tests.backend.sockets import ask, streamed, upstream_to, whole
from tests.certificates import Authority

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="needs nginx")

CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off; client_body_temp_path {folder}/body; client_max_body_size 0; keepalive_requests 100000;
    proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {pair.certificate}; ssl_certificate_key {pair.key};
        ssl_protocols {protocols};
        ssl_client_certificate {authority.path}; ssl_verify_client {verify};
        location / {{ return 200 "$connection $ssl_protocol $ssl_client_verify"; }}
    }}
}}
"""


@pytest.fixture(params=["TLSv1.2", "TLSv1.3"])
async def nginx(
    request: pytest.FixtureRequest, authority: Authority, tmp_path: Path, unused_tcp_port: int
) -> AsyncIterator[tuple[str, int]]:
    """An nginx that asks for a certificate and takes none, too; the version of TLS, and the port."""
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(
        CONFIGURATION.format(
            folder=tmp_path,
            port=unused_tcp_port,
            pair=authority.issue(),
            authority=authority,
            protocols=request.param,
            verify="optional",
        )
    )
    assert NGINX is not None
    process = await asyncio.create_subprocess_exec(
        NGINX, "-p", str(tmp_path), "-c", str(configuration), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(20):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", unused_tcp_port)).close()
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)
        yield request.param, unused_tcp_port
    finally:
        process.terminate()
        await process.wait()


async def test_one_connection_serves_all_requests(nginx: tuple[str, int], authority: Authority) -> None:
    version, port = nginx
    upstream = upstream_to(f"https://127.0.0.1:{port}", f"tls: {{ca: {authority.path}}}")
    answers = set()
    for n in range(60):
        text, codes = await ask(upstream, "POST", (whole(b"x"), Body(), streamed(b"y" * 300_000))[n % 3])
        assert codes == ["200"]
        answers.add(text.decode())
    await upstream.close()
    (answer,) = answers  # which begins with the number of the connection
    assert answer.endswith(f" {version} NONE")


async def test_a_client_certificate_is_verified(nginx: tuple[str, int], authority: Authority) -> None:
    version, port = nginx
    own = authority.issue("gateway")
    settings = f"tls: {{ca: {authority.path}, certificate: {own.certificate}, key: {own.key}}}"
    upstream = upstream_to(f"https://127.0.0.1:{port}", settings)
    text, _ = await ask(upstream, "GET", Body())
    await upstream.close()
    assert text.decode().endswith(f"{version} SUCCESS")


async def test_plain_http_to_its_port_is_answered_with_words_of_its_own(nginx: tuple[str, int]) -> None:
    _, port = nginx
    upstream = upstream_to(f"http://127.0.0.1:{port}")
    text, codes = await ask(upstream, "GET", Body())
    assert codes == ["400"]
    assert b"The plain HTTP request was sent to HTTPS port" in text
    await upstream.close()
