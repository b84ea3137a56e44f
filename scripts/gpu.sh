#!/usr/bin/env bash
# Runs everything that needs a GPU, on a machine that may have no Rust. `make gpu-bundle` puts this script
# next to the binaries. The arguments say what to run: tests, sanitize, bench, beyond; by default all of them.
#
#   ./gpu.sh               tests, the sanitizer, then benchmarks; a short table comes last
#   ./gpu.sh tests bench   only these
#
# bench measures tables in GPU memory, beyond tables in host memory. beyond writes its records while it
# measures, so an interrupted run keeps the figures so far.
set -uo pipefail
cd "$(dirname "$0")"

OUT="${OUT:-$PWD/results}"
mkdir -p "$OUT"
export STRAIT_REQUIRE_GPU=1
export STRAIT_CASES="${STRAIT_CASES:-8000}"
strait=./strait
rows=()
failed=0

# note NAME STATUS SECONDS DETAIL: adds a row to the table.
note() { rows+=("$(printf '%-34s %-7s %7s s  %s' "$1" "$2" "$3" "${4:-}")"); }

# step NAME COMMAND...: runs a command, keeps its output in a file, and notes its status.
step() {
    local name="$1" file started status seconds detail
    shift
    file="$OUT/${name//[^a-zA-Z0-9._-]/_}.log"
    echo "== $name: $*"
    started=$(date +%s.%N)
    "$@" >"$file" 2>&1
    status=$?
    seconds=$(awk -v a="$started" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
    detail="$(grep -hE '^test result:|ERROR SUMMARY|RACECHECK SUMMARY' "$file" | tail -1 | cut -c1-60)"
    if [ $status -eq 0 ]; then
        note "$name" ok "$seconds" "$detail"
    else
        failed=1
        note "$name" "failed" "$seconds" "$file"
        tail -n 40 "$file"
    fi
}

tests() {
    for binary in tests/*; do
        [ -x "$binary" ] && STRAIT_DEVICE=gpu step "$(basename "$binary")" "$binary"
    done
}

# apart TESTS COMMAND...: runs every test of a binary in its own process, eight at a time.
apart() {
    local binary="$1" kept names name failures=0
    shift
    kept="$(mktemp -d)"
    mapfile -t names < <("$binary" --list | sed -n 's/: test$//p')
    for name in "${names[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge 8 ]; do wait -n; done
        { "$@" "$binary" --exact "$name" && touch "$kept/$name.passed"; } >"$kept/$name" 2>&1 &
    done
    wait
    for name in "${names[@]}"; do
        [ -e "$kept/$name.passed" ] || failures=$((failures + 1))
        cat "$kept/$name"
    done
    rm -r "$kept"
    echo "test result: ${#names[@]} tests, $failures failed"
    [ ${#names[@]} -gt 0 ] && [ $failures -eq 0 ]
}

# The same tests with few and small cases, because the sanitizer is a hundred times slower, and mostly
# waits.
sanitize() {
    local tool options
    if ! command -v compute-sanitizer >/dev/null; then
        note compute-sanitizer "absent" 0.0 "comes with the CUDA toolkit"
        return
    fi
    for tool in memcheck racecheck initcheck; do
        options=(--tool "$tool" --error-exitcode 9)
        # Some tests ask for more memory than there is: a refusal is not an error.
        [ $tool = memcheck ] && options+=(--report-api-errors no)
        STRAIT_REDUCED=1 \
            step "gpu under $tool" apart tests/gpu compute-sanitizer "${options[@]}"
        STRAIT_REDUCED=1 step "stages under $tool" \
            compute-sanitizer "${options[@]}" tests/lib device::cuda::launch --test-threads=1
    done
}

# One command per line. The log of each has the figures, and the record is next to them.
bench() {
    step "devices" $strait devices
    step "compile" $strait devices --compile
    step "bench gpu" $strait bench gpu --out "$OUT"
    # An output of 2^32 rows, 96 GiB, with 32 GiB of GPU memory: many to many in bounded memory.
    step "beyond the memory" $strait bench join --build 2^28 --probe 2^28 --duplicates 16 \
        --device gpu --placement gpu --gpu-memory 32GiB --algorithm radix --mode materialise --repeat 1
    if command -v nvcc >/dev/null; then
        step "build CUB's sort" nvcc -O3 -arch=native -o cub_sort cub_sort.cu && step "CUB's sort" ./cub_sort
    fi
}

beyond() {
    step "compile" $strait devices --compile
    step "bench beyond" $strait bench beyond --out "$OUT"
    step "bench beyond, size" $strait bench beyond --study size --repeat 1 --out "$OUT"
    step "bench beyond, fanout" $strait bench beyond --study fanout --repeat 1 --out "$OUT"
    step "bench transfer" $strait bench transfer --out "$OUT"
}

for what in "${@:-all}"; do
    case "$what" in
        tests | sanitize | bench | beyond) $what ;;
        all) tests; sanitize; bench; beyond ;;
        *) echo "\"$what\" is not one of tests, sanitize, bench, beyond, all" >&2; exit 2 ;;
    esac
done

echo
printf '%s\n' "${rows[@]}"
exit $failed
