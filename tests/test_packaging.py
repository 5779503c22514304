"""What is released: the wheel and the sdist, installed as a user would, and the changelog."""

import re
import subprocess
import tarfile
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import gateway
from tests.conftest import require_tool

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, folder: Path | None = None) -> str:
    """What *command* printed; it must succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# The wheel and the sdist


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist; the wheel is made from the sdist, which so proves that it is complete."""
    folder = tmp_path_factory.mktemp("dist")
    build = require_tool("pyproject-build", "pip install -e '.[dev]'")
    run(build, "--outdir", folder, ROOT)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.slow
def test_an_index_can_show_what_is_built(built: tuple[Path, Path]) -> None:
    run(require_tool("twine", "pip install -e '.[dev]'"), "check", "--strict", *built)


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        names = set(archive.namelist())
        metadata = _metadata(archive)
    information = f"tensor_gateway-{gateway.__version__}.dist-info"
    package = {name for name in names if name.startswith("gateway/")}
    assert package == {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "gateway").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "gateway/py.typed" in package
    assert names - package == {
        f"{information}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }
    assert metadata["Version"] == gateway.__version__
    assert metadata["License-Expression"] == "Apache-2.0"


def _metadata(archive: zipfile.ZipFile) -> Message:
    [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(archive.read(name).decode())


@pytest.mark.slow
def test_the_sdist_holds_what_a_distributor_needs_to_test_it(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    folders = ("gateway", "tests", "config", "deploy", "docs", ".github")
    if (ROOT / ".git").exists():
        assert set(run("git", "-C", ROOT, "ls-files", *folders).splitlines()) <= names
    assert set(folders) <= {name.partition("/")[0] for name in names}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} <= names
    assert not [name for name in names if name.endswith(".pyc") or name.startswith((".venv", ".git/", "dist"))]


@pytest.mark.slow
def test_an_installed_wheel_runs_the_demo(built: tuple[Path, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    run(programs / "pip", "install", "-q", "--disable-pip-version-check", built[0])
    assert run(programs / "tensor-gateway", "--version", folder=tmp_path) == f"tensor-gateway {gateway.__version__}\n"
    assert "bit-exact: yes" in run(programs / "tensor-gateway", "demo", "--once", folder=tmp_path)
    run(programs / "pip", "check")


# The changelog


def test_the_newest_version_in_the_changelog_is_this_one() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if ".dev" in gateway.__version__:  # between two releases
        assert headings.pop(0) == f"Unreleased: {gateway.__version__}"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", heading) for heading in headings)
    versions = [heading.partition(" ")[0] for heading in headings]
    assert ".dev" in gateway.__version__ or versions[0] == gateway.__version__
    numbers = [tuple(map(int, version.split("."))) for version in [gateway.__version__.partition(".dev")[0], *versions]]
    assert numbers == sorted(numbers, reverse=True)
