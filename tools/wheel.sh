#!/usr/bin/env bash
# tools/wheel.sh VENV [PYTHON...]: builds wheels for VENV's interpreter and the others into wheelhouse/, puts libjpeg into them,
# and tries VENV's in a fresh environment. For Python 3.12 and later one wheel does; 3.10 and 3.11 have one each. The tag of the wheel is the
# oldest manylinux that this system's libraries allow: manylinux_2_28 needs a system with glibc 2.28, as the release workflow has.
# The wheel in wheelhouse/any has no native core; pip takes it where no other wheel fits.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
shift
python=$PWD/$venv/bin/python
work=build/wheel
rm -rf "$work"
mkdir -p "$work" wheelhouse

for interpreter in "$python" "$@"; do
    tools=$PWD/$venv
    if [ "$interpreter" != "$python" ]; then
        tools=$PWD/build/wheel-$("$interpreter" -c 'import sys; print("py%d.%d" % sys.version_info[:2])')
        "$interpreter" -m venv "$tools"
        "$tools/bin/python" -m pip install -q --disable-pip-version-check build cmake ninja "scikit-build-core>=0.11" "nanobind>=2.9"
    fi
    echo ">> wheel: building with $("$interpreter" -V)"
    PATH="$tools/bin:$PATH" "$tools/bin/python" -m build --wheel --no-isolation --outdir "$work" . >"$work/build.log" 2>&1 ||
        { cat "$work/build.log"; exit 1; }
done
echo ">> wheel: taking in the libraries that a system may lack"
PATH="$PWD/$venv/bin:$PATH" "$python" -m auditwheel repair --wheel-dir wheelhouse "$work"/penstock_loader-*.whl
echo ">> wheel: the one without a native core, for other systems"
PATH="$PWD/$venv/bin:$PATH" "$python" -m build --wheel --no-isolation -C wheel.cmake=false -C wheel.py-api=py3 --outdir wheelhouse/any . >"$work/any.log" 2>&1 ||
    { cat "$work/any.log"; exit 1; }

echo ">> wheel: a try in a fresh environment"
tools/setup.sh borrow "$venv" "$work/venv"
"$python" -m pip --python "$work/venv/bin/python" install -q --disable-pip-version-check --ignore-installed --no-deps --no-index --find-links wheelhouse penstock-loader
# From the root folder, so that nothing of this tree is importable.
(cd / && "$OLDPWD/$work/venv/bin/python" "$OLDPWD/tools/try_wheel.py")
ls wheelhouse/*.whl wheelhouse/any/*.whl
