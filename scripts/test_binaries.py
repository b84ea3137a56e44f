"""Copies the test binaries that cargo's JSON messages on stdin name into a folder."""

import json
import pathlib
import shutil
import sys

folder = pathlib.Path(sys.argv[1])
count = 0
for line in sys.stdin:
    if not line.startswith("{"):
        continue
    message = json.loads(line)
    if message.get("reason") == "compiler-message":
        print(message["message"].get("rendered", ""), file=sys.stderr, end="")
    if message.get("reason") != "compiler-artifact" or not message.get("executable"):
        continue
    if not message["profile"]["test"]:
        continue
    # The library's own tests would have the command's name.
    name = message["target"]["name"] if "test" in message["target"]["kind"] else "lib"
    shutil.copy(message["executable"], folder / name)
    count += 1
if count == 0:
    sys.exit("cargo named no test binary: did the build fail?")
