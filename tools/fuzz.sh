#!/usr/bin/env bash
# tools/fuzz.sh VENV SEED COUNT: builds the fuzzer of the JPEG decoder under AddressSanitizer and UndefinedBehaviorSanitizer, and
# runs COUNT files made from SEED.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 seed=$2 count=$3
build=build/fuzz

PATH="$PWD/$venv/bin:$PATH"
mkdir -p "$build"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPENSTOCK_SANITIZE=address \
    -DPython_EXECUTABLE="$PWD/$venv/bin/python" >"$build/configure.log" || { cat "$build/configure.log"; exit 1; }
cmake --build "$build" --target penstock_fuzz
export ASAN_OPTIONS=abort_on_error=0:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
cd "$build" # where it writes a file that it fails on
./penstock_fuzz --seed "$seed" --count "$count" ../../native/fuzz/corpus/*.jpg
