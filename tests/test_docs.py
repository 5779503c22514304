"""What the pages say is true: commands parse, configurations load, examples run, links lead somewhere.

A comment before a fenced block says what is done with it:

    <!-- run: demo -->           it runs as a client of a gateway in front of the embedded server, and ends with 0
    <!-- run: mlserver -->       the same in front of a real MLServer
    <!-- run: server.py -->      the same in front of the program of that name on the page
    <!-- run: demo; with: kserve -->   the same with the interpreter that KSERVE_PYTHON names
    <!-- run: server.py; through: nothing -->   the same without a gateway
    <!-- file: server.py -->     it is the program of that name
    <!-- prints -->              what the block before it prints
    <!-- doctor: NAME -->        what the doctor printed; tests/test_doctor.py compares it
    <!-- model -->               the block of a model under `models` of `dialect: template`
    <!-- crosses -->             what crosses with the block before; tests/test_docs_templates.py tries it

The gateway gets the configuration that the page shows under the same heading, if there is one. Ports of the loopback
interface are replaced by those in use.
"""

import asyncio
import functools
import os
import re
import shlex
import socket
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import cli, config, demo
from gateway.config import Backend, Config
from gateway.config.structure import is_struct, keys_of, without_none
from gateway.errors import ErrorKind
from gateway.exchange import Exchange
from gateway.policy.trace_context import Trace
from gateway.process.application import Application
from gateway.telemetry.access_log import line_of
from tests.clients.processes import output_of
from tests.conftest import require_tool
from tests.servers import Mlflow, serving
from tests.system.programs import MlServer, free_ports

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("deploy/**/*.md"),
    ]
)
USER_PAGES = [page for page in PAGES if page.name not in ("CONTRIBUTING.md", "CHANGELOG.md")]
OPERATIONS = ROOT / "docs/operations.md"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"

START_S = 60.0
"""How long a page's own server may take until it accepts connections."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOTE = re.compile(r"<!-- (.*?) -->\n\Z")
HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)
FOREIGN = {"resources", "apiVersion", "components", "metadata", "services", "scrape_configs", "static_resources"}
"""Keys at the top of YAML that is not a configuration of the gateway: Kubernetes, compose, Prometheus, Envoy."""


@dataclass
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    heading: str
    notes: dict[str, str]
    prints: str | None = field(default=None)
    """What it prints, if the page says so."""

    @property
    def name(self) -> str:
        """Where it is, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@functools.cache
def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    blocks: list[Block] = []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        note = NOTE.search(before)
        notes = dict(part.partition(": ")[::2] for part in note[1].split("; ")) if note else {}
        headings = HEADING.findall(FENCE.sub("", before))
        block = Block(page, before.count("\n") + 1, match[1], match[2], headings[-1] if headings else "", notes)
        if "prints" in notes:
            blocks[-1].prints = block.text
        blocks.append(block)
    return blocks


def blocks(*languages: str, run: bool | None = None) -> list[Any]:
    """The blocks in *languages*, each as a parameter; with *run*, only those that are marked so, or that are not."""
    return [
        pytest.param(block, id=block.name)
        for page in PAGES
        for block in blocks_of(page)
        if block.language in languages and (run is None or ("run" in block.notes) == run)
    ]


def prose(page: Path) -> str:
    """The text of *page* without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def spans(page: Path) -> set[str]:
    """What stands between backticks in the text of *page*."""
    return {span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", prose(page))}


each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def test_pages_have_blocks_of_each_kind() -> None:
    """Else the tests below would have nothing to do."""
    for languages in (("yaml",), ("sh",), ("python",), ("go",), ("javascript",)):
        assert blocks(*languages)
    assert blocks("python", run=True)


@each_page
def test_notes_before_blocks_are_known(page: Path) -> None:
    known = {
        "run": {"demo", "mlserver"},
        "with": {"kserve"},
        "through": {"nothing"},
        "prints": {""},
        "model": {""},
        "crosses": {""},
    }
    for block in blocks_of(page):
        known["run"] |= {block.notes["file"]} if "file" in block.notes else set()
        for key, value in block.notes.items():
            assert key in {*known, "file", "doctor", "bench", "end of trip"} or key.startswith("end of"), block.name
            assert value in known.get(key, {value}), block.name


# Links


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of *page*, as GitHub makes them."""
    found: set[str] = set()
    for heading in HEADING.findall(prose(page)):
        anchor = plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = 0
        while anchor in found:
            count += 1
            anchor = f"{plain}-{count}"
        found.add(anchor)
    return found


def broken(target: str, page: Path) -> bool:
    """Whether *target*, a link of *page* into the repository, leads nowhere."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return not file.exists() or bool(anchor and file.suffix == ".md" and anchor not in anchors(file))


@each_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    assert [target for target in targets if "://" not in target and broken(target, page)] == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_module_that_is_named_exists(page: str) -> None:
    modules = [f"/{path}" for folder in ("gateway", "tests") for path in (ROOT / folder).rglob("*.py")]
    names = re.findall(r"`([\w/]+\.py)`", prose(ROOT / page))
    assert [name for name in names if not any(module.endswith(f"/{name}") for module in modules)] == []


def test_readme_leads_to_every_page_for_users() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)", prose(page)):
            file = (page.parent / target).resolve()
            if file.is_dir():
                file /= "README.md"
            if file in PAGES and file not in seen:
                waiting.append(file)
    assert sorted(set(USER_PAGES) - seen) == []


# Configurations


@pytest.mark.parametrize("block", blocks("yaml"))
def test_every_configuration_loads(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{(\w+)\}", block.text):
        monkeypatch.setenv(name, "8080")  # as good as a port, a host or the name of a folder
    for document in yaml.safe_load_all(block.text):
        assert isinstance(document, dict), block.name
        if "model" in block.notes:
            models = {
                "default": {"endpoints": ["http://10.0.0.5:8000"], "dialect": "template", "models": {"m": document}}
            }
            document = {"backends": models}  # noqa: PLW2901  the rest of the configuration
        if not FOREIGN & set(document):
            config.parse(yaml.safe_dump(with_a_backend(document)))


PORTS_OF_SERVERS = {"8000": ("8000", "8001", "8002"), "8080": ("8080", "8081", "8082")}
"""What servers listen on: Triton, and MLServer, KServe and TorchServe, beside HTTP for gRPC, metrics and management."""


@pytest.mark.parametrize("block", blocks("sh", "yaml"))
def test_the_gateway_listens_where_the_server_behind_it_does_not(block: Block) -> None:
    behind = re.findall(r"(?:--backend |endpoints: \[\")http://127\.0\.0\.1:(\d+)", block.text)
    listens = re.findall(r"listen:? 127\.0\.0\.1:(\d+)", block.text)
    for port in behind:
        for taken in PORTS_OF_SERVERS.get(port, ()):
            assert taken not in (listens or ["8080"]), block.name


def with_a_backend(document: dict[str, Any]) -> dict[str, Any]:
    """*document*, which may show a part of a configuration only."""
    return {"backends": {"default": {"endpoints": ["http://10.0.0.5:8000"]}}} | document


def key_paths_of(type_: Any, path: str = "") -> Iterator[str]:
    """The keys in which values are set, such as `limits.header`, `backends.*.retry.attempts`, `routes[].name`."""
    type_ = without_none(type_)[0]
    arguments = getattr(type_, "__args__", ())
    if is_struct(type_):
        for key, item in keys_of(type_).items():
            yield from key_paths_of(item.type, f"{path}.{key}" if path else key)
    elif arguments and is_struct(arguments[-1]):
        yield from key_paths_of(arguments[-1], f"{path}[]" if len(arguments) == 1 else f"{path}.*")
    else:
        yield path


KEYS = set(key_paths_of(Config))


def key_of(span: str) -> str | None:
    """The full name of the key that *span* means: of the top level, or else of a backend, or else of a route."""
    candidates = (span, f"backends.*.{span}", f"routes[].{span}")
    return next((key for key in candidates if any(key == each or each.startswith(f"{key}.") for each in KEYS)), None)


@each_page
def test_every_key_that_is_named_exists(page: Path) -> None:
    dotted = re.compile(r"[a-z_]+(?:\[\]|\.\*)?(?:\.[a-z_]+)+")
    tops = {*keys_of(Config), *keys_of(Backend)}
    keys = {span.partition(": ")[0] for span in spans(page)}
    named = {key for key in keys if dotted.fullmatch(key) and re.split(r"[.\[]", key)[0] in tops}
    named = {key for key in named if not key.endswith((".py", ".yaml", ".md"))}
    assert {key for key in named if key_of(key) is None} == set()


def test_every_key_is_explained_by_topic_and_stands_in_the_reference() -> None:
    page = ROOT / "docs/configuration.md"
    explained = {key_of(span.partition(":")[0]) for span in spans(page)}
    # a table that has a key with all that is in it, such as `logging`, explains none of these
    assert KEYS - explained == set()


def settings() -> Iterator[Any]:
    """Each `key: value` between backticks of which the key is the gateway's."""
    for page in USER_PAGES:
        for span in sorted(spans(page)):
            key, colon, value = span.partition(": ")
            full = key_of(key) if colon and re.fullmatch(r"[a-z_.]+", key) else None
            if full is not None and not full.startswith("routes") and "..." not in value:
                yield pytest.param(full, value, id=f"{page.relative_to(ROOT)}: {span}")


@pytest.mark.parametrize(("key", "value"), list(settings()))
def test_every_setting_in_a_sentence_loads(key: str, value: str) -> None:
    files = {"tls": "{certificate, key}"}
    if files.get(key) == value:
        return
    document: Any = yaml.safe_load(value)
    for name in reversed(key.replace("backends.*", "backends.default").split(".")):
        document = {name: document}
    if "backends" in document:
        document["backends"]["default"]["endpoints"] = ["http://10.0.0.5:8000"]
        if document["backends"]["default"].get("dialect") == "python":
            document["backends"]["default"]["adapter"] = "adapters/scorer.py"
    config.parse(yaml.safe_dump(with_a_backend(document)))


# Commands


def commands(text: str) -> list[str]:
    """The arguments of each `tensor-gateway` in the shell script *text*."""
    joined = text.replace("\\\n", " ")
    return re.findall(r"(?:^|&&|\|)\s*tensor-gateway ([^|&#>\n]*)", joined, re.MULTILINE)


def parse(arguments: str) -> None:
    """Read *arguments* as the command does. Files that they name must exist, unless they stand for any file."""
    try:
        options = cli.parser().parse_args(shlex.split(arguments))
    except SystemExit as ended:
        assert ended.code == 0, f"not a command: tensor-gateway {arguments}"
        return
    for name in (getattr(options, "config", None), getattr(options, "file", None)):
        assert name is None or str(name) in ("-", "FILE") or str(name).startswith("/") or (ROOT / name).exists(), name


@pytest.mark.parametrize("block", blocks("sh"))
async def test_every_command_can_be_typed(block: Block) -> None:
    await output_of("bash", "-n", "-c", block.text)
    for arguments in commands(block.text):
        parse(arguments)
    for path in re.findall(r"(?<![\w/.-])((?:deploy|config|docs|tests|gateway)/[\w./-]+)", block.text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (tests[\w.]*)", block.text):
        assert (ROOT / module.replace(".", "/")).exists(), module
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in re.findall(r"'\.\[([\w,]+)\]'", block.text):
        assert set(extra.split(",")) <= set(extras)


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_a_sentence_can_be_typed(page: Path) -> None:
    for span in spans(page):
        for arguments in commands(span):
            parse(arguments if " " in arguments else f"{arguments} --help")


# Programs


@pytest.mark.parametrize("block", blocks("python"))
def test_every_python_program_compiles(block: Block) -> None:
    compile(block.text, block.name, "exec")


def test_every_program_in_another_language_is_run() -> None:
    assert blocks("go", "javascript", run=False) == []


def from_variable(name: str) -> str:
    """The program that the environment variable *name* names. Without it a developer's test is skipped."""
    found = os.environ.get(name)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is not set: see CONTRIBUTING.md")
    return found


def command(block: Block, text: str, folder: Path) -> list[str | Path]:
    """What runs *text*, the program of *block*."""
    names = {"python": "main.py", "go": "main.go", "javascript": "main.mjs", "sh": "main.sh"}
    file = folder / names[block.language]
    file.write_text(text)
    if block.language == "go":
        return [require_tool("go", "apt-get install golang-go"), "run", file]
    if block.language == "javascript":
        return [require_tool("node", "apt-get install nodejs, 18 or later"), file]
    if block.language == "sh":
        return [require_tool("bash", "apt-get install bash"), "-euo", "pipefail", file]
    return [from_variable("KSERVE_PYTHON") if block.notes.get("with") == "kserve" else sys.executable, file]


@asynccontextmanager
async def backend(block: Block, folder: Path) -> AsyncIterator[str]:
    """The URL of the server that *block* is a client of."""
    kind = block.notes["run"]
    if kind == "demo":
        async with demo.JsonServer.on_port(0) as server:
            yield server.url
    elif kind == "mlserver":
        mlserver = MlServer(folder / "mlserver")
        try:
            mlserver.start()
            await asyncio.to_thread(mlserver.wait_until_ready)
            yield mlserver.url
        finally:
            mlserver.stop()
    else:
        program = next(each for each in blocks_of(block.page) if each.notes.get("file") == kind)
        (folder / kind).write_text(program.text)
        if "mlflow.pyfunc" in program.text:
            with serving(Mlflow(folder, "double", folder / kind)) as mlflow:  # nothing else runs meanwhile
                yield mlflow.url
        else:
            async with served(folder / kind) as url:
                yield url


@asynccontextmanager
async def served(program: Path) -> AsyncIterator[str]:
    """The URL of *program*: a FastAPI, by the uvicorn that MLServer has brought, or else a server of KServe's."""
    (port,) = free_ports(1)
    if "FastAPI" in program.read_text():
        has_gateway = "gateway.asgi" in program.read_text()
        python = Path(sys.executable) if has_gateway else Path(from_variable("MLSERVER")).parent / "python"
        arguments = ["-m", "uvicorn", f"{program.stem}:app", "--port", str(port), "--log-level", "warning"]
    else:
        python = Path(from_variable("KSERVE_PYTHON"))
        arguments = [program.name, "--http_port", str(port), "--enable_grpc", "false"]
    process = await asyncio.create_subprocess_exec(python, *arguments, cwd=program.parent)
    try:
        async with asyncio.timeout(START_S):
            while not is_open(port):
                assert process.returncode is None, "the server has ended"
                await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def shown_configuration(block: Block) -> dict[str, Any]:
    """The configuration that stands before *block* under the same heading; the smallest one if there is none."""
    shown = [
        each.text
        for each in blocks_of(block.page)
        if each.language == "yaml" and each.heading == block.heading and each.line < block.line
    ]
    return with_a_backend(yaml.safe_load(shown[-1]) if shown else {})


@pytest.mark.parametrize("block", blocks("python", "go", "javascript", "sh", run=True))
async def test_every_example_runs(block: Block) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with backend(block, Path(folder)) as url:
            if block.notes.get("through") == "nothing":
                text = block.text.replace("127.0.0.1:8000", url.removeprefix("http://"))
                assert (await output_of(*command(block, text, Path(folder)))).decode() == block.prints
                return
            listeners = ("listen", "admin", "grpc")
            document = shown_configuration(block) | dict.fromkeys(listeners, "127.0.0.1:0")
            document["logging"] = {"access": "none"}
            for each in document["backends"].values():
                each["endpoints"] = [url]
            application = await Application.start(config.parse(yaml.safe_dump(document)))
            try:
                text = re.sub(r"127\.0\.0\.1:80[89]0", application.listen_url.removeprefix("http://"), block.text)
                for grpc_url in application.grpc_urls:
                    text = text.replace("127.0.0.1:8001", grpc_url.partition("://")[2])
                text = text.replace("127.0.0.1:9090", application.admin_url.removeprefix("http://"))
                printed = await output_of(*command(block, text, Path(folder)))
            finally:
                await application.stop()
    assert printed
    if block.prints is not None:
        assert printed.decode() == block.prints


def test_the_demo_shows_the_example_of_the_readme() -> None:
    (example, *_) = (block for block in blocks_of(ROOT / "README.md") if block.language == "python")
    shown = demo.next_steps("http://127.0.0.1:8000", "http://127.0.0.1:8080", "http://127.0.0.1:9090")
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    assert "\n".join(line for line in example.text.splitlines() if line) in "\n".join(lines)


# Facts


def test_the_first_figure_is_the_measured_one() -> None:
    texts = [
        re.search(r"<!-- bench: trip -->\n(.*?)<!-- end of trip -->", (ROOT / name).read_text(), re.DOTALL)
        for name in ("README.md", "docs/performance.md")
    ]
    assert texts[0] is not None and texts[1] is not None
    assert texts[0][1] == texts[1][1]


def section(heading: str) -> str:
    """What stands under *heading* in `docs/operations.md`, up to the next one of its level or a higher one."""
    level = len(heading.split(maxsplit=1)[0])
    _, found, rest = prose(OPERATIONS).partition(f"\n{heading}\n")
    assert found, f"no heading {heading!r}"
    return re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of each row of the tables in *text* that begins with a name between backticks."""
    lines = re.findall(r"^\| (`.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]


def test_every_reason_is_explained_with_its_status_and_blame() -> None:
    explained = {row[0].strip("`"): row[1:] for row in rows(section("## Reasons of errors"))}
    assert set(explained) == {kind.label for kind in ErrorKind}
    for kind in ErrorKind:
        status, blame, *words = explained[kind.label]
        assert str(kind.status) in status or kind is ErrorKind.BACKEND_ERROR
        assert kind.blame.value in blame
        assert all(words)


def test_every_field_of_the_access_log_is_explained() -> None:
    explained = {name for row in rows(section("## Access log")) for name in re.findall(r"`(\w+)`", row[0])}
    traced = Exchange("c", "GET", "/", "id", 0.0, batch_rows=1, trace=Trace("1" * 32, "2" * 16, True))
    assert set(line_of(traced)) <= explained


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    alerts = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule}
    explained = re.findall(r"^### (\w+)\n\n(.+)", section("## Alerts"), re.MULTILINE)
    assert {name for name, _ in explained} == set(alerts)
    for name, runbook in alerts.items():
        assert runbook.endswith(f"docs/operations.md#{name.lower()}")
