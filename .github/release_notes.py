"""Prints the section of CHANGELOG.md for a tag such as v0.2.0; fails unless the tag is the version of the package."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def notes(tag: str) -> str:
    """The changelog's section for *tag*, without its heading. Raises `ValueError` if that is not what is released."""
    version = tag.removeprefix("v")
    declared = re.search(r'^__version__ = "(.*)"$', (ROOT / "gateway/__init__.py").read_text(), re.MULTILINE)
    if declared is None or tag != f"v{declared[1]}":
        raise ValueError(f"the tag is {tag}, the package's version {declared and declared[1]}")
    pattern = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    section = re.search(pattern, (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL)
    if section is None:
        raise ValueError(f"CHANGELOG.md has no dated section for {version}")
    return section[1].strip()


if __name__ == "__main__":
    try:
        print(notes(sys.argv[1]))
    except ValueError as error:
        sys.exit(str(error))
