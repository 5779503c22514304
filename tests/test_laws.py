"""The laws of the house: who may import whom, what every module must have, what must agree with what."""

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest

from gateway.errors import ErrorKind

ROOT = Path(__file__).parent.parent
GATEWAY = ROOT / "gateway"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted(GATEWAY.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
}

# A module may import from its own row and those below it; the two sides of the wire never know each other.
LAYERS = [
    {"cli"},
    {"adapter_trial", "demo", "doctor"},
    {"process"},
    {"app", "asgi"},
    {"serving"},
    {"client", "backend"},
    {"plan", "telemetry", "exchange", "pacing", "tls", "certificates", "sockets", "http1", "waiting"},
    {"config"},
    {"policy", "codec"},
    {"adapter", "errors", "headers"},
]
PURE = ("codec", "policy")
# Inside the codec the same holds for its folders.
CODEC_LAYERS = ["dialects", "v2", "tensors", "json"]
BESIDE_V2 = CODEC_LAYERS.index("v2")
IMPURE = {"aiohttp", "asyncio", "time", "datetime", "socket", "ssl", "threading", "logging", "prometheus_client"}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Every module that *path* imports, by its full name."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {node.module or ""}
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "gateway"}
    return found


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def layer_of(module: str) -> int:
    room = room_of(module)
    return next((index for index, row in enumerate(LAYERS) if room in row), -1)


def may_import(module: str, imported: str) -> bool:
    sides = {room_of(imported), room_of(module)} == {"client", "backend"}
    return room_of(imported) == room_of(module) or (layer_of(imported) >= layer_of(module) and not sides)


def test_every_module_has_its_layer_and_imports_point_down() -> None:
    assert [module for module in MODULES if layer_of(module) < 0] == []
    rooms = set().union(*LAYERS)
    assert [
        f"{module} imports {imported}"
        for module, path in MODULES.items()
        for imported in imports_of(path)
        if imported.startswith("gateway.") and room_of(imported) in rooms and not may_import(module, imported)
    ] == []


PURE_MODULES = [name for name in MODULES if room_of(name) in PURE]


def test_pure_rooms_do_no_io_and_know_no_clock() -> None:
    for module in PURE_MODULES:
        imported = imports_of(MODULES[module])
        others = {room for room in PURE if room != room_of(module)}
        assert not {name.split(".")[0] for name in imported} & IMPURE, module
        assert not {room_of(name) for name in imported} & others, module


def test_every_pure_module_has_its_test_module() -> None:
    for module in PURE_MODULES:
        path = MODULES[module].relative_to(GATEWAY)
        assert (ROOT / "tests" / path.with_name(f"test_{path.name}")).exists(), module


def test_aiohttp_is_known_where_messages_are_parsed_and_where_its_server_or_client_is_used() -> None:
    theirs = {"aiohttp", "multidict", "yarl"}
    users = {name for name, path in MODULES.items() if {each.split(".")[0] for each in imports_of(path)} & theirs}
    server = {"process.admin", "client.request", "demo"}
    assert users == {f"gateway.{name}" for name in (*server, "backend.arriving", "http1")}


def test_imports_inside_the_codec_point_from_messages_to_tensors_to_json() -> None:
    for module, path in MODULES.items():
        if module.startswith("gateway.codec."):
            for imported in imports_of(path):
                if imported.startswith("gateway.codec."):
                    assert codec_layer_of(imported) >= codec_layer_of(module), f"{module} imports {imported}"


def codec_layer_of(module: str) -> int:
    """Modules that are in none of the folders, such as `inference`, stand beside those for V2."""
    folder = module.split(".")[2]
    return CODEC_LAYERS.index(folder) if folder in CODEC_LAYERS else BESIDE_V2


def test_every_module_says_what_lives_in_it() -> None:
    for path in GATEWAY.rglob("*.py"):
        assert ast.get_docstring(tree_of(path)), path


# Of aiohttp these may be used: what it exports for servers and clients, and its parsers and streams.
PUBLISHED = {
    "aiohttp", "aiohttp.abc", "aiohttp.web",
    "aiohttp.base_protocol", "aiohttp.http", "aiohttp.http_exceptions", "aiohttp.http_parser", "aiohttp.streams",
}  # fmt: skip
HANDLERS = {"ResponseHandler", "RequestHandler", "DataQueue", "StreamReader"}


def base_names(node: ast.ClassDef) -> set[str]:
    names = [base for each in node.bases for base in ast.walk(each)]
    return {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in names}


def test_aiohttp_is_used_through_what_it_publishes() -> None:
    for module, path in MODULES.items():
        used = []
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                used += [f"import {each.name}" for each in node.names if each.name.startswith("aiohttp.")]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "aiohttp":
                used += [f"from {node.module}" for _ in node.names if node.module not in PUBLISHED]
                used += [f"{node.module}.{each.name}" for each in node.names if each.name.startswith("_")]
            elif isinstance(node, ast.ClassDef):
                used += [f"{node.name}({name})" for name in base_names(node) & HANDLERS]
        assert used == [], module


def test_no_private_attribute_of_aiohttps_objects_is_touched() -> None:
    """A module that knows aiohttp touches private attributes of its own classes' objects alone, by `self`."""
    touched = {
        f"{name}: {ast.unparse(node)}"
        for name, path in MODULES.items()
        if {each.split(".")[0] for each in imports_of(path)} & {"aiohttp"}
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }
    assert touched == set()


def test_private_parts_of_asyncio_are_imported_by_its_tls_alone() -> None:
    parts = {
        f"{name}: {each}" for name, path in MODULES.items() for each in imports_of(path) if each.startswith("asyncio.")
    }
    assert parts == {"gateway.tls: asyncio.sslproto"}


def test_private_parts_of_ssl_are_used_by_the_two_files_for_tls_alone() -> None:
    """`_ssl` decodes certificates from files and from connections, which Python's public functions do not."""
    users = {
        name
        for name, path in MODULES.items()
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr in ("_ssl", "_sslobj")
    }
    assert users == {"gateway.certificates", "gateway.tls"}


def test_options_and_counters_of_sockets_are_in_one_file_and_in_the_listeners() -> None:
    asking = {
        module
        for module, path in MODULES.items()
        if "select" in {name.split(".")[0] for name in imports_of(path)}
        or any(isinstance(node, ast.Attribute) and node.attr in ("setsockopt", "getsockopt") for node in nodes_of(path))
    }
    assert asking <= {"gateway.sockets", "gateway.client.listeners"}


def test_error_labels_are_the_names_in_lower_case() -> None:
    assert {kind.label for kind in ErrorKind} == {kind.name.lower() for kind in ErrorKind}


def test_dependencies_say_why_they_are_there() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for name in ("dependencies", "tracing", "test", "dev", "fuzz"):
        block = re.search(rf"^{name} = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
        assert block is not None
        assert all("#" in line for line in block[1].splitlines())


def test_every_package_that_is_installed_is_used() -> None:
    """The text of the metrics is prometheus_client's: what a well-kept library does is not written again."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[\w-]+", each)[0].replace("-", "_") for each in required}  # type: ignore[index]
    modules = {{"pysimdjson": "simdjson", "pyyaml": "yaml"}.get(name, name) for name in names}
    imported = {name.partition(".")[0] for path in GATEWAY.rglob("*.py") for name in imports_of(path)}
    assert {"aiohttp", "numpy", "msgspec", "prometheus_client"} <= modules
    assert modules - imported == set()


CITATION = re.compile(
    r"\bprotocol(?:\.md)?,?\s+((?:sections?\s+)?\d+(?:\.\d+)?(?:(?:,| and| to| or)\s+(?:sections?\s+)?\d+(?:\.\d+)?)*)",
    re.IGNORECASE,
)


def cited(text: str) -> set[str]:
    """The sections ("5") and rules ("4.7") of docs/protocol.md that *text* names; "1 to 3" is three of them."""
    found = set()
    for citation in CITATION.findall(re.sub(r"\n\s*#?\s*", " ", text)):
        found |= set(re.findall(r"\d+(?:\.\d+)?", citation))
        for first, last in re.findall(r"\b(\d+) to (\d+)\b", citation):
            found |= {str(number) for number in range(int(first), int(last))}
        for section, first, last in re.findall(r"\b(\d+)\.(\d+) to \1\.(\d+)\b", citation):
            found |= {f"{section}.{number}" for number in range(int(first), int(last))}
    return found


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("see protocol 4.7 and 4.8", {"4.7", "4.8"}),
        ("(protocol 3.1, 4.9; RFC 9110 section 7.6)", {"3.1", "4.9"}),
        ("protocol sections 1 to 3, 6 and 4.9", {"1", "2", "3", "6", "4.9"}),
        ("protocol section 4, cases 18 to 21", {"4"}),
        ("protocol 2.2 to 2.4", {"2.2", "2.3", "2.4"}),
        ("as protocol\n    # section 5 says. 6 of them", {"5"}),
        ("HTTP/1.1 is a protocol; 4.7", set()),
    ],
)
def test_citations_of_the_protocol_are_understood(text: str, names: set[str]) -> None:
    assert cited(text) == names


def protocol_rules() -> set[str]:
    """The sections ("5") and the rules with a number ("4.7") of docs/protocol.md."""
    existing = set()
    for number, text in re.findall(
        r"^## (\d+)\. (.*?)(?=^## |\Z)", (ROOT / "docs/protocol.md").read_text(), re.MULTILINE | re.DOTALL
    ):
        existing |= {number, *(f"{number}.{item}" for item in re.findall(r"^(\d+)\. ", text, re.MULTILINE))}
    return existing


def test_every_rule_of_the_protocol_that_is_cited_exists() -> None:
    existing = protocol_rules()
    citations = {
        path: cited(path.read_text())
        for folder in ("gateway", "tests", "deploy", "config")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml", ".toml", ".md") and path != Path(__file__)
    }
    assert sum(map(len, citations.values())) > 20
    missing = {str(path.relative_to(ROOT)): names - existing for path, names in citations.items()}
    assert not {path: names for path, names in missing.items() if names}


# The rules of these sections are all numbered, and section 10 is a selection of cases: a test names a rule instead.
SECTIONS_WITHOUT_RULES_OF_THEIR_OWN = {"1", "2", "3", "4", "10", "11"}


def proved_in(source: str) -> list[str]:
    """The rules in the marks `rule` of the tests that *source* defines; a mark of the module counts if it has tests."""
    body = ast.parse(source).body
    tests = [
        node
        for node in body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    ]
    marks: list[ast.expr] = [mark for test in tests for mark in test.decorator_list]
    for node in body:
        if tests and isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks += node.value.elts if isinstance(node.value, ast.List) else [node.value]
    calls = [mark for mark in marks if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.rule"]
    return [ast.literal_eval(rule) for call in calls for rule in call.args]


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        ('@pytest.mark.rule("4.7", "5")\n@pytest.mark.slow\ndef test_a(): pass', ["4.7", "5"]),
        ('@pytest.mark.slow\n@pytest.mark.rule("1.1")\nasync def test_a(): pass', ["1.1"]),
        ('pytestmark = pytest.mark.rule("6")\ndef test_a(): pass', ["6"]),
        ('pytestmark = [pytest.mark.slow, pytest.mark.rule("6")]\ndef test_a(): pass', ["6"]),
        ('pytestmark = pytest.mark.rule("6")\ndef a(): pass', []),
        ('@pytest.mark.rule("6")\ndef a(): pass', []),
        ("def test_a(): pass", []),
    ],
)
def test_marks_of_rules_are_found(source: str, rules: list[str]) -> None:
    assert proved_in(source) == rules


def test_every_rule_of_the_protocol_has_a_test_and_every_mark_names_a_rule() -> None:
    existing = protocol_rules()
    proved = {path: set(proved_in(path.read_text())) for path in (ROOT / "tests").rglob("test_*.py")}
    unknown = {str(path.relative_to(ROOT)): names - existing for path, names in proved.items()}
    assert not {path: names for path, names in unknown.items() if names}
    assert existing - SECTIONS_WITHOUT_RULES_OF_THEIR_OWN - set().union(*proved.values()) == set()


# Where a rule stands that is none of the protocol: `docs/configuration.md, "Limits"`.
DOCS_CITATION = re.compile(r'docs/(\w+)\.md,\s+(?:#\s+)?"([^"]+)"')


def test_every_chapter_of_the_docs_that_is_cited_exists() -> None:
    chapters = {
        path.stem: set(re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE))
        for path in (ROOT / "docs").glob("*.md")
    }
    cited_in = {
        path: DOCS_CITATION.findall(path.read_text())
        for folder in ("gateway", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__)
    }
    assert sum(map(len, cited_in.values())) > 10
    assert [
        (path, page, title) for path, pairs in cited_in.items() for page, title in pairs if title not in chapters[page]
    ] == []


def patches_constants(source: str) -> bool:
    """Whether *source* sets an attribute in capital letters, or one whose name it computes.

    The optional parser may be taken away: there are machines without it.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            name = node.args[len(node.args) - 2]
            text = str(name.value).rpartition(".")[2] if isinstance(name, ast.Constant) else "COMPUTED"
            if text.isupper() and text != "_PARSER":
                return True
    return False


@pytest.mark.parametrize(
    ("source", "patches"),
    [
        ('monkeypatch.setattr(module, "PIECE_BYTES", 3)', True),
        ('monkeypatch.setattr("gateway.codec.x._MANY", 3)', True),
        ("for name in names: monkeypatch.setattr(module, name, 3)", True),
        ('monkeypatch.setattr(module, "walk", counting)', False),
        ("gateway.PIECE_BYTES", False),
    ],
)
def test_patches_of_constants_are_found(source: str, patches: bool) -> None:
    assert patches_constants(source) == patches


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "codec").rglob("*.py")), ids=lambda path: path.stem)
def test_no_test_of_the_codec_patches_its_constants(path: Path) -> None:
    """A test of the codec with other constants is a test of another codec: input of the right size reaches the same."""
    assert not patches_constants(path.read_text())


# A string's inside, whose repeats can only fail at their first byte.
_SAFE_REPEAT = r'(?:[^"\\]++|\\.)'


def test_no_regular_expression_repeats_a_group_possessively() -> None:
    """In Python 3.11.0 to 3.11.4 such a repeat ends at the wrong place if its last turn fails half way (gh-106052).

    Debian 12 has 3.11.2. A greedy repeat, in an atomic group where it must not be taken back, is right everywhere.
    """
    for path in GATEWAY.rglob("*.py"):
        text = path.read_text().replace(_SAFE_REPEAT, "x")
        lines = re.sub(r"\[(?:\\.|[^]\\])*\]", "x", text).splitlines()  # a set is one character, and may name brackets
        assert [line.strip() for line in lines if re.search(r"\)(?:[*+?]|\{[0-9,]+\})\+", line)] == [], path


# The ratchet: what is not measured grows.

MAX_LINES, MAX_COMPLEXITY, MAX_ATTRIBUTES = 600, 15, 15

_BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)


def complexity_of(function: ast.AST) -> int:
    """The cyclomatic complexity, with that of the functions inside: one, and one for each way that branches off."""
    complexity = 1
    for node in ast.walk(function):
        complexity += isinstance(node, _BRANCHES)
        if isinstance(node, ast.BoolOp):
            complexity += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            complexity += len(node.ifs)
    return complexity


def attributes_of(class_: ast.AST) -> int:
    """How many attributes of `self` the methods assign."""
    return len(
        {
            node.attr
            for node in ast.walk(class_)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id == "self"
        }
    )


def defined_in(path: Path, *kinds: type[ast.AST]) -> dict[str, ast.AST]:
    """The functions or classes in *path*, by file and qualified name."""
    found = {}

    def look(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            is_named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            inner = f"{name}.{child.name}".lstrip(".") if is_named else name  # type: ignore[attr-defined]
            if isinstance(child, kinds):
                found[f"{path.relative_to(GATEWAY).as_posix()}:{inner}"] = child
            look(child, inner)

    look(tree_of(path), "")
    return found


def measured() -> list[dict[str, int]]:
    """The lines of files, the complexity of functions and the attributes of classes that are above the limits."""
    files: dict[str, int] = {}
    functions: dict[str, int] = {}
    classes: dict[str, int] = {}
    for path in sorted(GATEWAY.rglob("*.py")):
        files[path.relative_to(GATEWAY).as_posix()] = len(path.read_text().splitlines())
        found = defined_in(path, ast.FunctionDef, ast.AsyncFunctionDef)
        functions |= {name: complexity_of(node) for name, node in found.items()}
        classes |= {name: attributes_of(node) for name, node in defined_in(path, ast.ClassDef).items()}
    limits = ((files, MAX_LINES), (functions, MAX_COMPLEXITY), (classes, MAX_ATTRIBUTES))
    return [{name: size for name, size in sizes.items() if size > limit} for sizes, limit in limits]


def test_files_functions_and_classes_do_not_grow() -> None:
    assert measured() == [{}, {}, {}]


@pytest.mark.parametrize(
    ("code", "complexity"),
    [
        ("def f(): return 1", 1),
        ("def f(a): return a and b or c", 3),
        ("def f(a):\n for b in a:\n  if b: pass\n  elif a: pass\n while a: pass", 5),
        ("def f(a): return [b for b in a if b if a]", 4),
        ("def f(a):\n try: pass\n except A: pass\n except B: pass\n assert a", 4),
        ("def f(a):\n match a:\n  case 1: pass\n  case _: pass", 3),
        ("def f(a):\n def g(): return 1 if a else 2\n return g", 2),
    ],
)
def test_complexity_is_counted_as_usual(code: str, complexity: int) -> None:
    assert complexity_of(ast.parse(code).body[0]) == complexity
