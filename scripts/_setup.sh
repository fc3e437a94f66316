# Set-up shared by the scripts of this folder: finds a Python, makes a virtual environment, installs into it.
# Sourced, never run; POSIX sh. It changes nothing outside the repository.

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# The root of the repository, whatever the current directory; CDPATH would make cd print.
ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1

# is_python COMMAND NEWEST: succeeds if COMMAND is a Python from 3.11 up to 3.NEWEST.
is_python() {
    "$1" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $2))" >/dev/null 2>&1
}

# find_python NEWEST: prints the first Python found; PYTHON in the environment goes before all others.
find_python() {
    for name in ${PYTHON:+"$PYTHON"} python3.14 python3.13 python3.12 python3.11 python3 python; do
        if is_python "$name" "$1"; then
            printf '%s\n' "$name"
            return 0
        fi
    done
    return 1
}

# stamp_of PYTHON EXTRAS CONSTRAINTS: a digest of all that decides what an environment holds.
stamp_of() {
    "$1" - "$ROOT" "$2" "$3" <<'EOF'
import hashlib, pathlib, sys
root, extras, constraints = sys.argv[1:]
digest = hashlib.sha256(f"{sys.version}|{extras}|{root}".encode())
for name in ("pyproject.toml", constraints):
    digest.update(pathlib.Path(root, name).read_bytes())
print(digest.hexdigest())
EOF
}

# make_venv PYTHON FOLDER: makes an environment, or says which package brings the missing module.
make_venv() {
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! "$1" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        printf '%s\n' "$1 (Python $version) cannot make virtual environments: its venv module is missing. Install it, e.g." \
            "    apt install python$version-venv   (or python3-venv; Debian, Ubuntu)" \
            "and run this script again." >&2
        return 1
    fi
    rm -rf "$2"
    "$1" -m venv "$2"
}

# install_into FOLDER EXTRAS CONSTRAINTS NEWEST: brings FOLDER up to date; does nothing when nothing changed.
# The package goes in editable, so that a change under src/ needs no new installation.
install_into() {
    python=$(find_python "$4") || {
        echo "no Python from 3.11 to 3.$4 found; set PYTHON to one" >&2
        return 1
    }
    stamp=$(stamp_of "$python" "$2" "$3") || return 1
    if [ -x "$1/bin/python" ] && [ "$(cat "$1/penstock-stamp" 2>/dev/null)" = "$stamp" ]; then
        return 0
    fi
    echo "Setting up $(basename "$1") with $("$python" --version) ..."
    make_venv "$python" "$1" || return 1
    (cd "$ROOT" && "$1/bin/python" -m pip install --quiet --disable-pip-version-check -c "$3" -e ".[$2]") || return 1
    printf '%s\n' "$stamp" >"$1/penstock-stamp"
}

# have_java: succeeds if a Java that Spark 4 runs on is there; on Debian, root installs one.
have_java() {
    is_java && return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Installing openjdk-17-jre-headless ..."
        { apt-get install -y -qq openjdk-17-jre-headless || { apt-get update -qq && apt-get install -y -qq \
            openjdk-17-jre-headless; }; } >/dev/null || return 1
    fi
    is_java
}

is_java() {
    major=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${major:-0}" -ge 17 ] 2>/dev/null
}

# install_petastorm: prints the Python of an environment with Petastorm 0.13.1, which reads what we write.
install_petastorm() {
    folder=$ROOT/.venv-petastorm
    python=$(find_python 11) || { echo "Petastorm 0.13.1 needs Python 3.11; set PYTHON to one" >&2; return 1; }
    stamp=$(cksum <"$ROOT/constraints-petastorm.txt")
    if [ ! -x "$folder/bin/python" ] || [ "$(cat "$folder/penstock-stamp" 2>/dev/null)" != "$stamp" ]; then
        echo "Setting up .venv-petastorm with $("$python" --version) ..." >&2
        make_venv "$python" "$folder" >&2 || return 1
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
            -r "$ROOT/constraints-petastorm.txt" >&2 || return 1
        printf '%s\n' "$stamp" >"$folder/penstock-stamp"
    fi
    printf '%s\n' "$folder/bin/python"
}
