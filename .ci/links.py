"""Checks the links of Markdown files: files and headings of this tree must exist.

    python3 .ci/links.py README.md ARCHITECTURE.md

Links to the web are not followed; those to this tree's files, folders and headings are, and file
names in ARCHITECTURE.md's code spans that look like paths are checked too.
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]+src=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
PATH = re.compile(r"`((?:crates|benchmarks|\.ci)/[\w./-]+)`")


def anchors(text: str) -> set[str]:
    """The anchors a Markdown viewer gives the headings of a text."""
    plain = (re.sub(r"[`*]", "", heading) for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def problems(page: Path) -> list[str]:
    """What is wrong with the links of one page."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = []
    for match in LINK.finditer(prose):
        target = next(group for group in match.groups() if group)
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.exists():
            found.append(f"{page}: no file {target}")
        elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
            found.append(f"{page}: no heading {target}")
    for path in PATH.findall(prose):
        if not Path(path).exists():
            found.append(f"{page}: names {path}, which does not exist")
    return found


def main() -> int:
    pages = [Path(name) for name in sys.argv[1:]]
    missing = [f"{page} does not exist" for page in pages if not page.exists()]
    wrong = missing + [line for page in pages if page.exists() for line in problems(page)]
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"links of {len(pages)} pages checked, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
