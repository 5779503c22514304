"""The workflows in `.github/`: they are linted, and what they run and publish exists."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import gateway
from tests.conftest import require_tool

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = {path.stem: path for path in sorted((GITHUB / "workflows").glob("*.yml"))}

each_workflow = pytest.mark.parametrize("workflow", WORKFLOWS)


def parsed(workflow: str) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load(WORKFLOWS[workflow].read_text())
    return document


def jobs(workflow: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = parsed(workflow)["jobs"]
    return found


def steps(workflow: str) -> list[dict[str, Any]]:
    return [step for job in jobs(workflow).values() for step in job.get("steps", [])]


def notes(tag: str, checkout: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, checkout / ".github/release_notes.py", tag]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_there_are_workflows_for_changes_and_for_releases() -> None:
    assert {"ci", "release"} <= WORKFLOWS.keys()


@pytest.mark.parametrize(
    ("schema", "files"),
    [("github-workflows", list(WORKFLOWS.values())), ("dependabot", [GITHUB / "dependabot.yml"])],
    ids=["workflows", "dependabot"],
)
def test_they_are_what_github_takes(schema: str, files: list[Path]) -> None:
    checker = require_tool("check-jsonschema", "pip install -e '.[test]'")
    command: list[str | Path] = [checker, "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_linter_finds_no_hole_in_them() -> None:
    linter = require_tool("zizmor", "pip install -e '.[dev]'")
    done = subprocess.run([linter, "--offline", GITHUB], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@each_workflow
def test_every_action_is_pinned_by_its_commit_with_its_version_beside_it(workflow: str) -> None:
    used = re.findall(r"^ +(?:- )?uses: (.*)$", WORKFLOWS[workflow].read_text(), re.MULTILINE)
    assert used
    others = [each for each in used if not each.startswith("./")]
    assert [each for each in others if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_one_action_has_one_commit_everywhere() -> None:
    used = {step["uses"] for workflow in WORKFLOWS for step in steps(workflow) if "uses" in step}
    assert len({each.partition("@")[0] for each in used}) == len(used)


@each_workflow
def test_a_job_may_write_only_what_it_is_there_for(workflow: str) -> None:
    assert parsed(workflow)["permissions"] == {}
    writes = {
        (name, scope)
        for name, job in jobs(workflow).items()
        for scope, access in job["permissions"].items()
        if access == "write"
    }
    allowed = {("pypi", "id-token"), ("image", "packages"), ("release", "contents")}
    assert writes == (allowed if workflow == "release" else set())


@each_workflow
def test_every_file_that_a_workflow_names_exists(workflow: str) -> None:
    runs = [step["run"] for step in steps(workflow) if "run" in step]
    named = {word for run in runs for word in re.findall(r"(?<![\w$/}:])\.?\w+/[\w./-]+", run)}
    named |= {step["with"]["file"] for step in steps(workflow) if "file" in step.get("with", {})}
    named |= {job["uses"] for job in jobs(workflow).values() if "uses" in job}
    assert named
    made = {"dist/", "notes/notes.md"}
    assert [each for each in named if each not in made and not (ROOT / each).exists()] == []


def test_a_release_has_the_section_of_the_changelog(tmp_path: Path) -> None:
    """The checkout is mostly between two releases, so one of the newest release is made of it."""
    version = re.findall(r"^## ([0-9.]+) - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    for name in ("CHANGELOG.md", ".github/release_notes.py", "gateway/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text().replace(gateway.__version__, version))
    done = notes(f"v{version}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() in (ROOT / "CHANGELOG.md").read_text()
    assert "\n## " not in done.stdout
    assert len(done.stdout) > 100


@pytest.mark.parametrize("tag", ["v0.0.1", gateway.__version__, "main"])
def test_a_tag_that_is_not_the_version_is_not_released(tag: str) -> None:
    done = notes(tag)
    assert done.returncode == 1
    assert f"the tag is {tag}, the package's version {gateway.__version__}" in done.stderr
