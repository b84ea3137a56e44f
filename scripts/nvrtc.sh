#!/usr/bin/env bash
# Prints the path of NVRTC, which compiles kernels on machines with and without a GPU. The first run installs
# it with pip into the user's cache folder. If STRAIT_NVRTC is set, the script prints it unchecked.
set -euo pipefail

version=13.0
if [ -n "${STRAIT_NVRTC:-}" ]; then
    echo "$STRAIT_NVRTC"
    exit
fi
cache="${XDG_CACHE_HOME:-$HOME/.cache}/strait"
place="$cache/nvrtc-$version"
library() { find "$1" -path '*/nvidia/cu13/lib/libnvrtc.so.13' -print -quit 2>/dev/null || true; }

found="$(library "$place")"
if [ -z "$found" ]; then
    echo "installing NVRTC $version into $place, once" >&2
    mkdir -p "$cache"
    # An interrupted download leaves nothing behind: the folder gets its final name only when it is complete.
    # Another process may have been faster.
    aside="$(mktemp -d "$cache/.nvrtc-XXXXXX")"
    trap 'rm -rf "$aside"' EXIT
    "${PYTHON:-python3}" -m venv "$aside"
    "$aside/bin/python" -m pip install --quiet --disable-pip-version-check \
        "nvidia-cuda-nvrtc==$version.*" >&2
    # NVRTC itself needs no Python, so paths inside may still name the folder in which it was made.
    [ -n "$(library "$place")" ] || { rm -rf "$place" && mv -T "$aside" "$place"; }
    found="$(library "$place")"
fi
if [ -z "$found" ]; then
    echo "NVRTC was installed into $place, but libnvrtc.so.13 is not in there" >&2
    exit 1
fi
echo "$found"
