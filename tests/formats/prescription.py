"""What the doctor writes and says of a server, and what was written by hand in its place."""

import asyncio
import contextlib
import io
import json
import re
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway import cli
from tests.formats.stand_in import Format
from tests.formats.templates import steps_of


@dataclass
class Prescription:
    """What the doctor has written and said, or what stands for it."""

    backend: dict[str, Any] | None
    """The backend's settings without its endpoints; None if there are none."""
    said: tuple[str, ...] = ()
    """What was said in questions, notes and problems, and in the file's comments."""
    printed: str = ""
    is_by_hand: bool = False

    @property
    def model(self) -> dict[str, Any]:
        """The block of the only model."""
        assert self.backend is not None
        (block,) = self.backend["models"].values()
        return dict(block)

    def names(self, *paths: str) -> bool:
        """Whether something was said of one of *paths*, or of one of *words* that begins with no `$`."""
        return any(_is_named(path, words) for path in paths for words in self.said)


def _is_named(path: str, words: str) -> bool:
    """Whether *words* have *path*, or what is around it, or its last name in quotes or before a colon."""
    if not path.startswith("$"):
        return re.search(rf"\b{re.escape(path)}\b", words) is not None
    words = re.sub(r"\[[*\d]+\]", "", words)
    names = [step for step in steps_of(path) if isinstance(step, str)]
    around = {f"${''.join(f'.{name}' for name in names[:length])}" for length in range(1, len(names) + 1)} or {"$"}
    if any(re.search(rf"(?<![\w$]){re.escape(each)}(?![\w.({{])", words) for each in around):
        return True
    return (
        bool(names) and re.search(rf"[`'\"]{re.escape(names[-1])}[`'\":]|^{re.escape(names[-1])}:", words) is not None
    )


_FINDING = re.compile(r"^  (\w+) +(.*?)(?=^  \w|^\S|\Z|^\n)", re.MULTILINE | re.DOTALL)
_TABLES = re.compile(r"^What (this small inference takes|clients can do).*?(^\n|\Z)", re.MULTILINE | re.DOTALL)
_BESIDE = re.compile(
    r"the server does not say what the model's|not answered: model configuration|GUESSED|moves no output"
    r"|it is made an input|is INT64|was not varied|integers in the sample"
)


def said_in(findings: str, file: str) -> tuple[str, ...]:
    """What of the doctor's output tells its user that something may be wrong.

    That is no praise, no list of what was guessed, and nothing of an input that clients have.
    """
    found = _FINDING.findall(_TABLES.sub("", findings))
    words = [re.sub(r"\s+", " ", text) for kind, text in found if kind != "ok"]
    comments = [line.partition("#")[2].strip() for line in file.splitlines() if line.lstrip().startswith("#")]
    return tuple(each for each in words + comments if not _BESIDE.search(each))


async def examined(url: str, form: Format, n_samples: int) -> Prescription:
    """What `tensor-gateway doctor` makes of the server at *url* with the first *n_samples* of its samples."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["doctor", url, "--path", form.path, "--model", "m", "--yaml"]
        for index, sample in enumerate(form.samples[:n_samples]):
            file = Path(folder) / f"sample{index}.json"
            file.write_text(json.dumps(sample))
            arguments += ["--sample", str(file)]
        file_text, findings = await asyncio.to_thread(_run_doctor, arguments)
    try:
        backend = yaml.safe_load(file_text)["backends"]["default"]
        del backend["endpoints"]
    except (yaml.YAMLError, TypeError, KeyError):
        backend = None
    if backend is not None and "models" not in backend:
        backend = None
    return Prescription(backend, said_in(findings, file_text), findings + file_text)


CRASHED = "the doctor crashed"


def _run_doctor(arguments: list[str]) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        try:
            cli.main(arguments)
        except Exception:  # a defect of the doctor's is a finding like others
            return "", f"{CRASHED}\n{traceback.format_exc()}"
    return out.getvalue(), err.getvalue()


def by_hand(form: Format, folder: Path) -> Prescription:
    """What was written by hand for this format."""
    backend: dict[str, Any] = {"dialect": "template"}
    if form.adapter is not None:
        file = folder / "adapter.py"
        file.write_text(form.adapter.source)
        backend |= {"dialect": "python", "adapter": str(file)}
    block = yaml.safe_load(form.adapter.models if form.adapter is not None else form.by_hand)
    return Prescription({**backend, "models": {"m": block}}, is_by_hand=True)
