"""The clients in Go, C++ and Java of docs/clients.md, built from Debian's packages, with stubs that protoc makes."""

import os
from pathlib import Path

import pytest

from gateway.demo import JsonServer
from tests.clients.processes import output_of
from tests.conftest import require_tool
from tests.grpc.conftest import address_of, serving
from tests.test_docs import ROOT, blocks_of

pytestmark = pytest.mark.slow

GO_PACKAGES = Path("/usr/share/gocode")
JAVA_PACKAGES = Path("/usr/share/java")


def written(folder: Path, *names: str, address: str) -> None:
    """Save the blocks of the page that are called *names* in *folder*, as clients of *address*."""
    programs = {block.notes.get("file"): block.text for block in blocks_of(ROOT / "docs/clients.md")}
    for name in names:
        text = programs[name]
        assert name.endswith(".proto") or "127.0.0.1:8001" in text
        (folder / name).write_text(text.replace("127.0.0.1:8001", address))


def require(path: Path, packages: str) -> None:
    if not path.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{path} is missing: apt-get install {packages}")


async def test_a_client_in_go(server: JsonServer, tmp_path: Path) -> None:
    go = require_tool("go", "apt-get install golang-go")
    require_tool("protoc-gen-go-grpc", "apt-get install protoc-gen-go-1-5 protoc-gen-go-grpc")
    require(GO_PACKAGES / "src/google.golang.org/grpc", "golang-google-grpc-dev golang-github-golang-protobuf-1-5-dev")
    async with serving(server.url) as (client, _):
        written(tmp_path, "inference.proto", "main.go", address=address_of(client))
        own = tmp_path / "own/src"
        own.mkdir(parents=True)
        protoc = require_tool("protoc", "apt-get install protobuf-compiler")
        await output_of(protoc, f"--go_out={own}", f"--go-grpc_out={own}", "inference.proto", folder=tmp_path)
        variables = {"GO111MODULE": "off", "GOPATH": f"{own.parent}:{GO_PACKAGES}"}
        printed = await output_of(go, "run", "main.go", folder=tmp_path, variables=variables)
    assert printed.split() == [b"0.1", b"2", b"3", b"4"]


async def test_a_client_in_cpp(server: JsonServer, tmp_path: Path) -> None:
    compiler = require_tool("g++", "apt-get install g++")
    plugin = require_tool("grpc_cpp_plugin", "apt-get install protobuf-compiler-grpc")
    require(Path("/usr/include/grpcpp/grpcpp.h"), "libgrpc++-dev")
    finder = require_tool("pkg-config", "apt-get install pkg-config")
    async with serving(server.url) as (client, _):
        written(tmp_path, "inference.proto", "main.cc", address=address_of(client))
        protoc = require_tool("protoc", "apt-get install protobuf-compiler")
        made = ("--cpp_out=.", "--grpc_out=.", f"--plugin=protoc-gen-grpc={plugin}")
        await output_of(protoc, *made, "inference.proto", folder=tmp_path)
        sources = ("main.cc", "inference.pb.cc", "inference.grpc.pb.cc")
        libraries = (await output_of(finder, "--libs", "grpc++", "protobuf")).decode().split()
        await output_of(compiler, "-std=c++17", *sources, "-o", "main", *libraries, folder=tmp_path)
        printed = await output_of(tmp_path / "main", folder=tmp_path)
    assert printed.split() == [b"0.1", b"2", b"3", b"4"]


async def test_a_client_in_java(server: JsonServer, tmp_path: Path) -> None:
    compiler = require_tool("javac", "apt-get install openjdk-17-jdk-headless")
    plugin = require_tool("grpc_java_plugin", "apt-get install protobuf-compiler-grpc-java-plugin")
    require(JAVA_PACKAGES / "grpc-netty.jar", "libgrpc-java libnetty-java libgeronimo-annotation-1.3-spec-java")
    async with serving(server.url) as (client, _):
        written(tmp_path, "inference.proto", "Main.java", address=address_of(client))
        protoc = require_tool("protoc", "apt-get install protobuf-compiler")
        made = ("--java_out=.", "--grpc-java_out=.", f"--plugin=protoc-gen-grpc-java={plugin}")
        await output_of(protoc, *made, "inference.proto", folder=tmp_path)
        sources = sorted(tmp_path.rglob("*.java"))
        classes = f"{JAVA_PACKAGES}/*"
        await output_of(compiler, "-nowarn", "-cp", classes, "-d", "classes", *sources, folder=tmp_path)
        printed = await output_of("java", "-cp", f"{classes}:classes", "Main", folder=tmp_path)
    assert printed.split() == [b"0.1", b"2.0", b"3.0", b"4.0"]
