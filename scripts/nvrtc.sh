#!/usr/bin/env bash
# Prints the path of NVRTC, which compiles kernels on machines with and without a GPU. Installs it
# with pip into the user's cache folder on the first run. STRAIT_NVRTC, where set, is believed.
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
    # A download that was cut short leaves nothing behind: the folder takes its name when it is
    # whole. Another process may have been faster.
    aside="$(mktemp -d "$cache/.nvrtc-XXXXXX")"
    trap 'rm -rf "$aside"' EXIT
    "${PYTHON:-python3}" -m venv "$aside"
    "$aside/bin/python" -m pip install --quiet --disable-pip-version-check \
        "nvidia-cuda-nvrtc==$version.*" >&2
    # What loads it needs no Python: paths inside may be those of the folder it was made in.
    [ -n "$(library "$place")" ] || { rm -rf "$place" && mv -T "$aside" "$place"; }
    found="$(library "$place")"
fi
if [ -z "$found" ]; then
    echo "NVRTC was installed into $place, but libnvrtc.so.13 is not in there" >&2
    exit 1
fi
echo "$found"
