#!/usr/bin/env bash
# tools/sanitize.sh VENV address|thread [ARGUMENT...]: builds the native core with that sanitizer and runs the tests marked
# `native` on it, or Python with these arguments.
#
# The interpreter, torch and numpy are not instrumented, so the sanitizer's library is loaded before them, and what they do
# among themselves is not reported (tools/tsan.supp names it). Leaks are not looked for here: an interpreter frees little
# at exit. The tests count threads, file descriptors and buffers instead.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 sanitizer=$2
shift 2
root=$PWD/build/sanitize/$sanitizer-$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
mkdir -p "$root"
exec 9>"$root/lock"
flock 9 # another run of this sanitizer ends first

echo ">> $sanitizer sanitizer: building the native core in ${root#"$PWD"/}"
# The sanitized module goes into an environment of its own: the editable penstock of VENV would come first on any path.
tools/setup.sh borrow "$venv" "$root/venv"
site=$("$root/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -R src/penstock "$site/penstock"
PATH="$PWD/$venv/bin:$PATH"
cmake -S . -B "$root/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPENSTOCK_SANITIZE="$sanitizer" \
    -DPython_EXECUTABLE="$PWD/$venv/bin/python" -DCMAKE_INSTALL_PREFIX="$site" >"$root/configure.log" ||
    { cat "$root/configure.log"; exit 1; }
cmake --build "$root/build"
cmake --install "$root/build" >/dev/null

compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$root/build/CMakeCache.txt")
library() { realpath "$("$compiler" -print-file-name="$1")"; }
# The sanitizers have handlers of their own, and keep memory that was freed.
options=(
    --deselect tests/carriers/test_moved_memory.py::test_no_signal_is_handled
    --deselect tests/carriers/test_moved_memory.py::test_a_fault_in_a_thread_of_the_core_comes_to_the_handlers_of_the_program
    --deselect tests/carriers/test_loader_lifetime.py::test_the_memory_of_one_huge_image
)
case $sanitizer in
    # libstdc++ beside it: the interpreter does not link it, and the sanitizer looks up __cxa_throw at start.
    address) preload="$(library libasan.so) $(library libstdc++.so)" ;;
    # ThreadSanitizer cannot follow threads that a forked child starts; AddressSanitizer runs those tests.
    thread)
        preload="$(library libtsan.so)"
        # A child that is forked beside another thread, such as pytest-timeout's, may end as soon as it starts one.
        options+=(
            -o timeout_method=signal
            --deselect tests/carriers/test_readers.py::test_a_fork_while_readers_work
            --deselect tests/carriers/test_filled.py::test_a_forked_child_goes_on
            --deselect tests/conformance/test_shutdown.py::test_a_forked_child_has_no_part_in_a_pass
            --deselect tests/conformance/test_shutdown.py::test_persistent_workers_of_the_parent_are_replaced_in_a_forked_child
        )
        ;;
esac

# ThreadSanitizer maps its shadow at fixed places, which a random layout of the address space may take.
fixed=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed=(setarch "$(uname -m)" -R); fi

# A batch larger than any memory is a MemoryError here too.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:strict_string_checks=1:${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=suppressions=$PWD/tools/tsan.supp:halt_on_error=1:die_after_fork=0:history_size=4:allocator_may_return_null=1
# One thread each: OpenMP and BLAS synchronise their own by futexes that ThreadSanitizer does not see.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1

LD_PRELOAD=$preload "${fixed[@]}" "$root/venv/bin/python" - "$site" <<'PYTHON'
import sys
import penstock._native
if not penstock._native.__file__.startswith(sys.argv[1]):
    sys.exit(f"the module under test is {penstock._native.__file__}, not the sanitized one")
PYTHON
[ $# = 0 ] || { LD_PRELOAD=$preload exec "${fixed[@]}" "$root/venv/bin/python" "$@"; }
echo ">> $sanitizer sanitizer: the native tests"
LD_PRELOAD=$preload "${fixed[@]}" "$root/venv/bin/python" -m pytest -m native --capture=sys -p no:cacheprovider --timeout 600 "${options[@]}"
