"""Refuse the message of a commit that changes behaviour without saying why. A hook of pre-commit, at commit-msg.

    python scripts/check_commit.py FILE

A commit that changes ``src/`` needs a body, after an empty line, unless its subject begins with a word that changes no
behaviour, such as Format or Rename. Merges and what git writes itself (Revert, fixup!) pass.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT_BODY = ("Comment", "Docs", "Document", "Format", "Log", "Merge", "Move", "Rename", "Revert", "Reword", "Test")
"""First words of subjects of commits that change no behaviour."""
_FIXES = ("fixup!", "squash!", "amend!")
_TRAILERS = ("Signed-off-by:", "Co-authored-by:", "Reviewed-by:")


def complaint(message: str, changed: list[str]) -> str | None:
    """Return what a message lacks, given the paths that its commit changes; None where it is complete."""
    text = message.partition("# ------------------------ >8")[0]  # what follows is the diff of `commit --verbose`
    subject, *rest = [line.rstrip() for line in text.splitlines() if not line.startswith("#")] or [""]
    if not any(path.startswith("src/") for path in changed) or subject.startswith(_FIXES):
        return None
    if (subject.split() or [""])[0].rstrip(":,") in WITHOUT_BODY:
        return None
    if rest and rest[0]:
        return "the subject is more than one line: leave the second line empty"
    if not any(line and not line.startswith(_TRAILERS) for line in rest):
        return (
            "it changes src/ and has no body: say why after an empty line, and what was measured "
            f"(not asked after {', '.join(WITHOUT_BODY)})"
        )
    return None


def main() -> None:
    listed = subprocess.run(["git", "diff", "--cached", "--name-only"], capture_output=True, text=True, check=True)
    if found := complaint(Path(sys.argv[1]).read_text(encoding="utf-8"), listed.stdout.splitlines()):
        sys.exit(f"commit message: {found}")


if __name__ == "__main__":
    main()
