"""Print a release's text: the section of its version in CHANGELOG.md.

    python scripts/release_notes.py v0.1.0 [DIST]

A tag without a section, or a file in the folder DIST that is of another version, ends it with exit code 1.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def section(changelog: str, version: str) -> str:
    """Return the text below a version's heading up to the next version's; "" where there is none."""
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def main() -> None:
    tag, *folders = sys.argv[1:]
    version = tag.removeprefix("v")
    text = section(CHANGELOG.read_text(encoding="utf-8"), version) if version[:1].isdigit() else ""  # not Unreleased
    if not text:
        sys.exit(f"CHANGELOG.md: no section [{version}], or nothing in it; write what a user gets before the tag {tag}")
    for path in (path for folder in folders for path in sorted(Path(folder).glob("unimoe*"))):
        if not path.name.startswith((f"unimoe-{version}-", f"unimoe-{version}.tar")):
            sys.exit(f"{path}: is not of version {version}; tag the commit that is built, and build from a clean clone")
    print(text)


if __name__ == "__main__":
    main()
