#!/usr/bin/env bash
# Prints the folder of the object stores that the tests of the command run against: moto (S3) and Azurite (Azure).
# The first run installs them with pip and npm into the user's cache folder. If STRAIT_STORES is set, the script
# prints it unchecked.
set -euo pipefail

moto=5.2.5
azurite=3.35.0
client=12
if [ -n "${STRAIT_STORES:-}" ]; then
    echo "$STRAIT_STORES"
    exit
fi
cache="${XDG_CACHE_HOME:-$HOME/.cache}/strait"
place="$cache/stores-moto-$moto-azurite-$azurite"

if [ ! -d "$place" ]; then
    echo "installing moto $moto and Azurite $azurite into $place, once" >&2
    command -v npm >/dev/null || { echo "npm is needed to install Azurite; install Node.js" >&2; exit 1; }
    mkdir -p "$cache"
    # An interrupted download leaves nothing behind: the folder gets its final name only when it is complete.
    # Another process may have been faster.
    aside="$(mktemp -d "$cache/.stores-XXXXXX")"
    trap 'rm -rf "$aside"' EXIT
    "${PYTHON:-python3}" -m venv "$aside/moto"
    "$aside/moto/bin/python" -m pip install --quiet --disable-pip-version-check "moto[server]==$moto" >&2
    # The client makes the container that the tests use.
    npm install --silent --no-fund --no-audit --prefix "$aside/azurite" \
        "azurite@$azurite" "@azure/storage-blob@$client" >&2
    # The programs are started by their interpreters, so paths inside may still name the folder in which they
    # were made.
    [ -d "$place" ] || mv -T "$aside" "$place"
fi
echo "$place"
