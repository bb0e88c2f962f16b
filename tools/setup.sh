#!/usr/bin/env bash
# Set-up of a working folder, in steps that the Makefile calls in this order:
#
#   tools/setup.sh python VENV [PYTHON]     system packages, the interpreter, an empty environment
#   tools/setup.sh requirements VENV        what pyproject.toml names for the package and its examples: build tools, torch
#   tools/setup.sh package VENV             the native core, built; penstock installed in place
#
# and four more that some targets need:
#
#   tools/setup.sh tools VENV               the tools of tests, lint and wheels
#   tools/setup.sh docs VENV                what `make docs` builds the site with
#   tools/setup.sh peers VENV               build/peers: what the benchmarks compare with, as far as it installs
#   tools/setup.sh borrow VENV FOLDER       a small environment in FOLDER with VENV's packages, without its penstock
#
# Each step may be repeated; a step whose work is done already ends at once.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '>> %s\n' "$*"; }
die() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

# ---------------------------------------------------------------- system packages

# What a missing piece is called: by apt, by dnf, and in words.
package_name() {
    case "$1:$2" in
        apt:compiler) echo g++ ;;          dnf:compiler) echo gcc-c++ ;;
        apt:jpeg) echo libjpeg-dev ;;      dnf:jpeg) echo libjpeg-turbo-devel ;;
        apt:python) echo python3 ;;        dnf:python) echo python3 ;;
        apt:venv) echo "$3-venv" ;;        dnf:venv) echo "$3" ;;
        apt:headers) echo "$3-dev" ;;      dnf:headers) echo "$3-devel" ;;
        words:compiler) echo "a C++20 compiler (g++ 11 or later, or clang++ 14 or later)" ;;
        words:jpeg) echo "libjpeg-turbo with its header jpeglib.h" ;;
        words:python) echo "Python 3.10 or later" ;;
        words:venv) echo "the venv and ensurepip modules of $3" ;;
        words:headers) echo "the headers of $3 (Python.h)" ;;
    esac
}

manager() {
    if command -v apt-get >/dev/null; then echo apt
    elif command -v dnf >/dev/null; then echo dnf
    else echo words; fi
}

# supply PYTHON_NAME PIECE...: installs the pieces where that is ours to do, else names them and the command, and stops.
supply() {
    local name=$1 tool names=() piece
    shift
    tool=$(manager)
    for piece in "$@"; do
        say "missing: $(package_name words "$piece" "$name")"
        names+=("$(package_name "$tool" "$piece" "$name")")
    done
    if [ "$tool" = apt ] && [ "$(id -u)" = 0 ]; then
        say "installing with apt-get: ${names[*]}"
        apt-get update -q && DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -q --no-install-recommends "${names[@]}" ||
            die "apt-get failed. What is needed:" "    apt-get update && apt-get install -y ${names[*]}"
        return
    fi
    case $tool in
        apt) die "install what is missing, then run make again:" "    sudo apt-get update && sudo apt-get install -y ${names[*]}" ;;
        dnf) die "install what is missing, then run make again:" "    sudo dnf install -y ${names[*]}" ;;
        *) die "install with this system's package manager, then run make again:" "${names[@]/#/    }" ;;
    esac
}

# compiles FLAG... <SOURCE: whether it becomes a program. (Not to /dev/null: some linkers replace their output file.)
compiles() {
    local folder status=0
    folder=$(mktemp -d)
    "${CXX:-c++}" -std=c++20 -x c++ - -o "$folder/probe" "$@" >/dev/null 2>&1 || status=1
    rm -rf "$folder"
    return $status
}

has_compiler() { compiles <<<'#include <span>
int main() { int a[2]{1, 2}; return static_cast<int>(std::span<int>(a).size()) - 2; }'; }

# The two functions are those of libjpeg-turbo that the plain IJG library lacks.
has_jpeg() { compiles -ljpeg <<<'#include <cstdio>
#include <jpeglib.h>
int main() { return jpeg_crop_scanline == nullptr || jpeg_skip_scanlines == nullptr; }'; }

# ---------------------------------------------------------------- the interpreter

# lacks COMMAND: prints what the interpreter lacks (nothing, "venv", "headers" or both); fails when it is not a Python >= 3.10.
lacks() {
    "$1" -c '
import importlib.util, os, sys, sysconfig
if sys.version_info < (3, 10): sys.exit(1)
if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))): print("venv")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")): print("headers")
' 2>/dev/null
}

# choose [PYTHON]: sets `chosen` and `wanting`: the first complete interpreter, else the first that runs, else nothing.
choose() {
    local candidates=(python3.13 python3.12 python3.11 python3.10 python3) candidate found
    [ -z "${1:-}" ] || candidates=("$1")
    chosen="" wanting=""
    for candidate in "${candidates[@]}"; do
        # A name on PATH proves nothing (pyenv's shims): it is run.
        found=$(lacks "$candidate") || continue
        if [ -z "$found" ]; then
            chosen=$candidate wanting=""
            return
        fi
        [ -n "$chosen" ] || chosen=$candidate wanting=$found
    done
}

# Debian's name of the packages for this interpreter, such as python3.11.
version_name() { "${1:-python3}" -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null || echo python3; }

step_python() {
    local venv=$1 python=${2:-} missing=() round
    for round in 1 2; do
        missing=()
        choose "$python"
        if [ -z "$chosen" ]; then
            [ -z "$python" ] || die "PYTHON=$python is not a Python 3.10 or later that runs"
            missing+=(python venv headers)
        fi
        # shellcheck disable=SC2206  # one word a piece
        missing+=($wanting)
        has_compiler || missing+=(compiler)
        # Without a compiler the JPEG header cannot be tried: both come in one command.
        has_jpeg || missing+=(jpeg)
        if [ ${#missing[@]} = 0 ]; then break; fi
        [ $round = 1 ] || die "still missing after the installation: ${missing[*]}" \
            "(this system's packages may be too old: Python 3.10, g++ 11 and libjpeg-turbo 1.5 are needed)"
        supply "$(version_name "$chosen")" "${missing[@]}"
        hash -r
    done
    if ! lacks "$venv/bin/python" >/dev/null || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        say "environment: $venv ($("$chosen" -V))"
        "$chosen" -m venv --clear "$venv"
    fi
    touch "$venv/.python"
}

# ---------------------------------------------------------------- packages from the index

# requirements GROUP...: the requirement strings of pyproject.toml, one a line ("build" and "run" are its own lists).
requirements() {
    "$venv/bin/python" - "$@" <<'PYTHON'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    data = tomllib.load(file)
groups = {"build": data["build-system"]["requires"], "run": data["project"]["dependencies"]}
groups |= data["project"]["optional-dependencies"]
print(*(line for group in sys.argv[1:] for line in groups.get(group, [])), sep="\n")
PYTHON
}

# install STAMP WORDS <REQUIREMENTS: installs them, one a line, unless the stamp says that they are there.
install() {
    local stamp=$1 wanted list
    wanted=$(cat)
    if [ "$wanted" != "$(cat "$stamp" 2>/dev/null)" ]; then
        say "packages: $2"
        mapfile -t list <<<"$wanted"
        # One command for all of them, so that pip picks a torch and a torchvision that belong together.
        "$venv/bin/python" -m pip install --disable-pip-version-check "${list[@]}"
        printf '%s\n' "$wanted" >"$stamp"
    fi
    touch "$stamp"
}

step_requirements() {
    venv=$1
    # cmake and ninja from the index: the same versions everywhere, and nothing to ask of the system.
    { printf '%s\n' cmake ninja; requirements build run vision examples; } |
        install "$venv/.requirements" "build tools, torchvision and torch, which with its CUDA libraries takes 5 GB on disk"
}

step_tools() {
    venv=$1
    requirements test lint wheel | install "$venv/.tools" "the tools of tests, lint and wheels"
}

step_docs() {
    venv=$1
    requirements docs | install "$venv/.docs" "MkDocs and its theme"
}

# peer ARGUMENT...: installs beside the borrowed packages, or says what is left out.
peer() {
    say "peers: $*"
    "$venv/bin/python" -m pip --python build/peers/bin/python install -q --disable-pip-version-check "$@" ||
        say "does not install here, the benchmarks leave it out: $*"
}

# In an environment of their own, so that what they ask for changes nothing in VENV.
step_peers() {
    venv=$1
    step_borrow "$venv" build/peers
    peer setuptools wheel tqdm numba
    peer grain
    peer torchdata
    peer webdataset
    peer mosaicml-streaming
    peer litdata
    peer spdl spdl_io # loads FFmpeg's shared libraries when it is used
    peer nvidia-dali-cuda130
    peer simplejpeg
    peer "PyTurboJPEG<2" # loads the system's libturbojpeg when it is used; 2.0 wants that of libjpeg-turbo 3
    # FFCV is built from source with OpenCV's and TurboJPEG's headers; it names versions that no longer install.
    peer --no-deps terminaltables fastargs assertpy psutil pytorch-pfn-extras opencv-python-headless
    peer --no-deps --no-build-isolation ffcv
    touch build/peers/.done
}

# ---------------------------------------------------------------- penstock

step_package() {
    venv=$1
    # Checkouts up to version 0.1.0 were installed as `penstock`: the two would share files.
    if compgen -G "$venv/lib/python3*/site-packages/penstock-*.dist-info" >/dev/null; then
        "$venv/bin/python" -m pip uninstall -q -y --disable-pip-version-check penstock
    fi
    say "penstock: building the native core (a minute or more the first time)"
    # The build folder stays, so only what changed is compiled; src/ is used in place.
    PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m pip install -q --disable-pip-version-check \
        --no-build-isolation --no-deps --editable .
    # Where it was built: the Makefile builds again when the folder was moved or copied.
    pwd -P >"$venv/.package"
}

step_borrow() {
    local venv=$1 folder=$2 site
    "$venv/bin/python" -m venv --clear --without-pip "$folder"
    site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # A plain path: the .pth files that lie there, the editable penstock's among them, are not read.
    "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/borrowed.pth"
}

step=${1:-}
case $step in
    python | requirements | tools | docs | package | peers | borrow) shift && "step_$step" "$@" ;;
    *) die "usage: tools/setup.sh python|requirements|tools|docs|package|peers|borrow VENV [...]" ;;
esac
