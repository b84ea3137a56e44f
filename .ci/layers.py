#!/usr/bin/env python3
"""Checks that the modules of crates/strait/src import from lower layers only.

    .ci/layers.py

LAYERS lists the layers from top to bottom. A module uses the layers below its own, and modules of its own
layer. The tests of a module are not checked. Every module has to be in the list.
"""

import pathlib
import re
import sys

SOURCES = pathlib.Path(__file__).parent.parent / "crates" / "strait" / "src"
LAYERS = [
    ["lib"],
    ["internal"],
    ["run", "reader", "bind", "settings", "resolve", "join", "report"],
    ["algorithm"],
    ["plan"],
    ["matches", "materialise", "output"],
    ["transfer", "spill"],
    ["partition", "table", "sort"],
    ["key"],
    ["device"],
    ["input", "reading"],
    ["context"],
    ["word"],
    ["memory", "progress", "stopwatch"],
    ["schedule", "machine", "gpu_options", "overrides"],
    ["options", "processor", "statistics", "build_side", "cancel"],
    ["error"],
]


def code(path):
    """The text of a file without comments and without its module of tests."""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    return re.split(r"#\[cfg\(test\)\]\s*mod tests \{", text)[0]


def main():
    height = {module: -at for at, layer in enumerate(LAYERS) for module in layer}
    wrong = []
    paths = [path for path in SOURCES.rglob("*.rs") if "tests" not in path.stem]
    paths = [path for path in paths if "tests" not in path.relative_to(SOURCES).parts]
    for path in sorted(paths):
        name = path.relative_to(SOURCES)
        module = name.parts[0].removesuffix(".rs")
        if module not in height:
            wrong.append(f"{name}: the module {module} is in no layer of {sys.argv[0]}")
            continue
        for used in sorted(set(re.findall(r"\bcrate::(\w+)::", code(path)))):
            if height.get(used, height[module]) > height[module]:
                wrong.append(f"{name} uses {used}, which is in a higher layer")
    print("\n".join(wrong + [f"layers of {len(paths)} files checked, {len(wrong)} wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
