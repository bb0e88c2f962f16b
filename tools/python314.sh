#!/usr/bin/env bash
# tools/python314.sh [VERSION]: puts an interpreter of Python 3.14, or of another VERSION such as 3.15, into build/pythonVERSION and prints
# its path; where it is there already, the script only prints. The matrix (tools/matrix.sh) uses the interpreter where it is there.
#
# The interpreter is that of Debian's newest packages (suite sid), from the mirror that apt is set up with, unpacked beside the C library that it
# was built for. Nothing is installed, and the set-up of apt stays as it is. It takes a minute and 250 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-3.14}
target=$PWD/build/python$version
python=$target/usr/bin/python$version
if [ -x "$python" ]; then
    echo "$python"
    exit
fi
die() { echo "python314: $*" >&2; exit 1; }
command -v apt-get >/dev/null || die "this script needs apt-get, of Debian or Ubuntu"
mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian //p' | head -n 1)
[ -n "$mirror" ] || die "apt knows no mirror of Debian"

work=$target.work
rm -rf "$work" "$target"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
: >"$work/status" # no package counts as installed: apt takes the C library too
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/sources.list"
own=(-q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists"
    -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User=root
    -o APT::Install-Recommends=0)
{
    apt-get "${own[@]}" update
    apt-get "${own[@]}" install -y --download-only "python$version" "python$version-venv" "python$version-dev" libstdc++6
} >"$work/log" 2>&1 || { cat "$work/log" >&2; die "apt gave no Python $version"; }
for package in "$work"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$work/root"; done

multiarch=$(basename "$(dirname "$(find "$work/root/usr/lib" -name 'libc.so.6')")")
# The headers of this Python only: those of the C library are the system's own.
mkdir "$work/root/usr/include/python$version/$multiarch"
mv "$work/root/usr/include/$multiarch/python$version" "$work/root/usr/include/python$version/$multiarch/"
# Debian's ensurepip takes pip from this folder.
sed -i "s#/usr/share/python-wheels#$target/usr/share/python-wheels#" "$work/root/usr/lib/python$version"/_sysconfigdata__*.py
# The name by which this script is called stays the name of the program: so it works as the `python` of an environment.
loader=$(basename "$(find "$work/root/usr/lib" "$work/root/usr/lib64" -name 'ld-linux-*.so.*' | head -n 1)")
mv "$work/root/usr/bin/python$version" "$work/root/usr/bin/python$version.bin"
cat >"$work/root/usr/bin/python$version" <<SCRIPT
#!/bin/bash
exec "$target/usr/lib/$multiarch/$loader" --library-path "$target/usr/lib/$multiarch" --argv0 "\$0" "$target/usr/bin/python$version.bin" "\$@"
SCRIPT
chmod +x "$work/root/usr/bin/python$version"
mv "$work/root" "$target"
rm -rf "$work"
echo "$python"
