# Sourced by the programs beside it. `make_venv base` or `make_venv test` leaves a working .venv with this checkout installed, editable.
#
# A stamp in .venv says from which setup.cfg and which interpreter it was made; while it fits, nothing is done. Making is guarded by a
# lock that the kernel drops with its holder, so two that start together make it once, and one that was killed is in nobody's way.

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
venv=$root/.venv

say() { echo "$(basename -- "$0"): $*" >&2; }

stamp() { cksum < "$root/setup.cfg"; echo "${PYTHON:-any}"; }

is_made() { # $1: base or test
    [ -x "$venv/bin/python" ] && [ "$(cat "$venv/made-$1" 2> /dev/null)" = "$(stamp)" ]
}

is_python() { # $1: a command; true for CPython 3.11 or newer
    "$1" -c 'import sys; sys.exit(sys.implementation.name != "cpython" or sys.version_info < (3, 11))' 2> /dev/null
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3 python3.13 python3.12 python3.11; fi
    for command do
        if is_python "$command"; then
            command -v "$command"
            return
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        say "PYTHON=$PYTHON is not CPython 3.11 or newer. Name one that is, or leave PYTHON unset."
    else
        say "expected CPython 3.11 or newer, found none. On Debian: apt install python3 python3-venv; or name one with PYTHON=."
    fi
    return 1
}

is_usable() { # The .venv runs, has pip, and is of the interpreter that PYTHON names, if it names one.
    "$venv/bin/python" -m pip --version > /dev/null 2>&1 || return 1
    [ -z "${PYTHON:-}" ] || [ "$("$venv/bin/python" -c "$base_prefix")" = "$("$1" -c "$base_prefix")" ]
}
base_prefix='import sys; print(sys.base_prefix, sys.version_info[:2])'

install() { # $1: base or test. Runs under the lock.
    is_made "$1" && return
    python=$(find_python) || return
    if ! is_usable "$python"; then
        say "making .venv with $python"
        if ! "$python" -c 'import ensurepip, venv' 2> /dev/null; then
            say "$python cannot make virtual environments. On Debian: apt install python3-venv."
            return 1
        fi
        "$python" -m venv --clear "$venv" || return
    fi
    case $1 in test) what=$root[test] ;; *) what=$root ;; esac
    say "installing $1 requirements into .venv"
    if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$what"; then
        say "pip failed, as it says above. A package without a wheel for this machine needs a compiler: apt install gcc python3-dev."
        return 1
    fi
    if [ "$1" = test ]; then stamp > "$venv/made-test"; fi
    stamp > "$venv/made-base"
}

make_venv() {
    is_made "$1" && return
    python=$(find_python) || return
    # The lock is held through descriptor 9 of this shell; Python serves as flock(1), which not every system has.
    exec 9> "$root/.venv.lock"
    "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' || return
    install "$1"
    result=$?
    exec 9>&-
    return $result
}
