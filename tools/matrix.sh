#!/usr/bin/env bash
# tools/matrix.sh [TORCH...]: runs a part of the tests with older releases of torch, each with the torchvision and Pillow of its time, in an
# environment of its own in build/matrix (6 GB each with torch's CUDA libraries). Prints one line each; the rest is in build/matrix/*.log.
#
#   tools/matrix.sh                         torch 2.6, 2.8, 2.10, 2.14 and the newest
#   tools/matrix.sh 2.6 newest              some of them
#   TESTS="tests/order tests/state" tools/matrix.sh
#   PYTHON_2_6=python3.10 tools/matrix.sh   another interpreter for one of them
#
# The newest torch runs on Python 3.14 where tools/python314.sh has put it into build/python3.14, and on python3.13 elsewhere.
set -uo pipefail
cd "$(dirname "$0")/.."
tests=${TESTS:-tests/loader tests/sources tests/carriers}
failed=0
newest_python=$PWD/build/python3.14/usr/bin/python3.14
[ -x "$newest_python" ] || newest_python=python3.13

# torch, torchvision, Pillow, Python. The oldest runs on the oldest Python.
release() {
    case $1 in
        2.6) echo "==2.6.* ==0.21.* ==11.1.* python3.10" ;;
        2.8) echo "==2.8.* ==0.23.* ==11.3.* python3.11" ;;
        2.10) echo "==2.10.* ==0.25.* ==12.1.* python3.12" ;;
        2.14) echo "==2.14.* ==0.29.* >=12 python3.13" ;;
        newest) echo ">=2.14 >=0.29 >=12 $newest_python" ;;
        *) echo "matrix: no release $1: it is 2.6, 2.8, 2.10, 2.14 or newest" >&2; exit 2 ;;
    esac
}

make_environment() {
    local folder=$1 python=$2
    "$python" -m venv "$folder" &&
        "$folder/bin/python" -m pip uninstall -q -y penstock && # of a checkout up to version 0.1.0
        "$folder/bin/python" -m pip install --disable-pip-version-check "torch$3" "torchvision$4" "pillow$5" \
            cmake ninja scikit-build-core nanobind pytest pytest-timeout pytest-xdist hypothesis scipy rich &&
        PATH="$PWD/$folder/bin:$PATH" "$folder/bin/python" -m pip install --disable-pip-version-check \
            --no-build-isolation --editable .
}

run() {
    local name=$1 torch vision pillow python override folder="build/matrix/torch-$1" log="build/matrix/torch-$1.log" outcome
    read -r torch vision pillow python < <(release "$name") || exit 2
    override="PYTHON_${name//./_}"
    python=${!override:-$python}
    mkdir -p build/matrix
    # Each time: the native core is compiled where it has changed, and pip ends at once where all is installed.
    if ! make_environment "$folder" "$python" "$torch" "$vision" "$pillow" >"$log" 2>&1; then
        outcome="cannot be installed: $log"
        failed=1
    else
        # shellcheck disable=SC2086  # one word a path
        "$folder/bin/python" -m pytest $tests -q -n auto --maxprocesses 4 --dist worksteal >>"$log" 2>&1 || failed=1
        outcome=$(tail -n 1 "$log")
        name=$("$folder/bin/python" -c 'import sys, torch, torchvision, PIL; print("%d.%d" % sys.version_info[:2], torch.__version__, torchvision.__version__, PIL.__version__)' |
            sed 's/\(.*\) \(.*\) \(.*\) \(.*\)/torch \2, torchvision \3, Pillow \4, Python \1/')
    fi
    echo "$name: $outcome"
}

[ $# -gt 0 ] || set -- 2.6 2.8 2.10 2.14 newest
for release in "$@"; do run "$release"; done
exit $failed
