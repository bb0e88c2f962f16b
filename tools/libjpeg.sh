#!/usr/bin/env bash
# tools/libjpeg.sh [SOURCE]: builds libjpeg-turbo with its SIMD code and installs it in /usr/local, for wheels. The build images of wheels
# have version 1.5; the native core needs 2.0.3 for all of Pillow's pixels. Needs git, cmake and, on x86_64, nasm.
#
# SOURCE: a repository of libjpeg-turbo; without it, its own on GitHub.
set -euo pipefail
version=3.1.2
source=${1:-https://github.com/libjpeg-turbo/libjpeg-turbo}
[ "$(uname -m)" != x86_64 ] || command -v nasm >/dev/null || dnf install -y nasm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone -q --depth 1 --branch "$version" "$source" "$work/source"
cmake -S "$work/source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="${PREFIX:-/usr/local}" -DCMAKE_INSTALL_LIBDIR=lib \
    -DENABLE_STATIC=OFF -DREQUIRE_SIMD=ON -DWITH_TURBOJPEG=OFF -DWITH_TOOLS=OFF -DWITH_TESTS=OFF
cmake --build "$work/build" --parallel
cmake --install "$work/build"
[ -n "${PREFIX:-}" ] || ldconfig
