"""The workflows in `.github/`: they are linted, and what they run and publish exists."""

import os
import re
import shlex
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
    allowed = {("pypi", "id-token"), ("image", "packages"), ("image", "id-token"), ("release", "contents")}
    assert writes == (allowed if workflow == "release" else set())


@each_workflow
def test_every_file_that_a_workflow_names_exists(workflow: str) -> None:
    runs = [step["run"] for step in steps(workflow) if "run" in step]
    named = {word for run in runs for word in re.findall(r"(?<![\w$/}:.])\.?\w+/[\w./-]+", run)}
    named |= {step["with"]["file"] for step in steps(workflow) if "file" in step.get("with", {})}
    named |= {job["uses"] for job in jobs(workflow).values() if "uses" in job}
    assert named
    made = {"dist/", "notes/notes.md"}
    assert [each for each in named if each not in made and not (ROOT / each).exists()] == []


IMAGE: str = parsed("release")["env"]["IMAGE"]
"""The image's name as the release workflow publishes it."""

NAMING = ("README.md", "deploy/README.md", "deploy/kubernetes/image/kustomization.yaml", "docs/kubernetes.md")


@pytest.mark.parametrize("file", NAMING)
def test_the_image_is_named_as_it_is_published(file: str) -> None:
    named = set(re.findall(r"\bghcr\.io/[\w./-]*\w", (ROOT / file).read_text()))
    assert named == {IMAGE}


def test_no_other_file_names_the_image() -> None:
    """All are compared above with the workflow."""
    folders = (path for name in ("config", "deploy", "docs") for path in (ROOT / name).rglob("*"))
    files = [path for path in (*ROOT.glob("*.*"), *folders) if path.suffix in {".md", ".yaml", ".yml", ".toml"}]
    found = {str(path.relative_to(ROOT)) for path in files if "ghcr.io" in path.read_text()}
    assert found == set(NAMING)


@pytest.mark.parametrize("file", ["docs/kubernetes.md", "deploy/kubernetes/image/kustomization.yaml"])
def test_an_image_that_is_named_with_a_tag_has_the_version(file: str) -> None:
    text = (ROOT / file).read_text()
    tags = re.findall(r"(?:/tensor-gateway:|newTag: |refs/tags/v)(\d[\w.]*\w)", text)
    assert tags
    assert set(tags) == {gateway.__version__}


def test_the_image_is_pushed_and_signed_by_digest_under_the_one_name() -> None:
    pushed, signed = (
        next(step for step in jobs("release")["image"]["steps"] if wanted in str(step))
        for wanted in ("build-push-action", "cosign sign")
    )
    assert pushed["with"]["tags"].partition(":")[0] == "${{ env.IMAGE }}"
    assert signed["env"] == {"DIGEST": f"${{{{ steps.{pushed['id']}.outputs.digest }}}}"}
    assert '"$IMAGE@$DIGEST"' in signed["run"]
    assert "--key" not in signed["run"]


def test_a_signature_is_verified_by_the_name_of_the_workflow_that_makes_it() -> None:
    """What users type is what the workflow itself types, with the values of a release instead of its variables."""
    (signing,) = (step["run"] for step in jobs("release")["image"]["steps"] if "cosign sign" in step.get("run", ""))
    own = shlex.split(signing[signing.index("cosign verify") :].replace("\\\n", " "))
    (block,) = re.findall(r"```sh\n(cosign verify .*?)```", (ROOT / "deploy/README.md").read_text(), re.DOTALL)
    values = {
        "$IMAGE@$DIGEST": f"{IMAGE}:VERSION",
        "$GITHUB_REPOSITORY": IMAGE.removeprefix("ghcr.io/"),
        "$GITHUB_REF": "refs/tags/vVERSION",
    }
    for variable, value in values.items():
        own = [each.replace(variable, value) for each in own]
    assert shlex.split(block.replace("\\\n", " ")) == own


def test_the_image_says_where_its_source_is() -> None:
    label = f'org.opencontainers.image.source="https://github.com/{IMAGE.removeprefix("ghcr.io/")}"'
    assert label in (ROOT / "deploy/Dockerfile").read_text()


def guard(repository: str) -> subprocess.CompletedProcess[str]:
    (script,) = (step["run"] for step in jobs("release")["build"]["steps"] if "$IMAGE" in step.get("run", ""))
    variables = {"IMAGE": IMAGE, "GITHUB_REPOSITORY": repository, "PATH": os.environ["PATH"]}
    command = ["bash", "-e", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


def test_a_repository_of_another_name_does_not_release() -> None:
    own = IMAGE.removeprefix("ghcr.io/")
    assert guard(own).returncode == guard(own.title()).returncode == 0
    refused = guard("somebody/else")
    assert refused.returncode == 1
    assert f"IMAGE is {IMAGE}, and this repository may publish ghcr.io/somebody/else" in refused.stdout


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
