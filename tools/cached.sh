# Sourced by the scripts that bring a program which tests need: where such programs lie, which Go builds them, and how each is brought
# once. Whoever sources it defines `missing WHAT`, which says on standard error what to install, and ends.

# Programs and their locks: $FEEDMILL_CACHE, or else ~/.cache/feedmill.
cache=${FEEDMILL_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or FEEDMILL_CACHE}/.cache}/feedmill}
go_needed=1.26

# Go, and never another toolchain than the one that is installed.
need_go() {
    export PATH=$PATH:/usr/local/go/bin GOTOOLCHAIN=local GOFLAGS="-mod=mod -trimpath"
    command -v go >/dev/null || missing "missing: go"
    local installed
    installed=$(go env GOVERSION)
    installed=${installed#go}
    [ "$(printf '%s\n%s\n' "$go_needed" "$installed" | sort -V | head -n1)" = "$go_needed" ] || missing "go is $installed"
}

# go_program FOLDER MODULE VERSION CHECKSUM PACKAGE [GO-ARGUMENT...]: builds a package of a module into a folder. Go checks every module
# against its checksum database; the module's own checksum is the one given.
go_program() {
    local folder=$1 module=$2 version=$3 checksum=$4 package=$5
    need_go
    # Elsewhere than in this folder, whose go.mod it must not read.
    (cd / && GOBIN=$folder CGO_ENABLED=0 nice go install "${@:6}" "$package@$version" >&2) || missing "$module $version cannot be built"
    go version -m "$folder/${package##*/}" | grep -qF "$module	$version	$checksum" || {
        echo "$module $version has not the checksum $checksum that ${0##*/} expects" >&2
        exit 1
    }
}

# once PROGRAM COMMAND...: prints the program's path. Where it is not there the command, given a folder, makes it there by its name; one
# at a time, and who waited finds it.
once() {
    local program=$1 name=${1##*/}
    if [ ! -x "$program" ]; then
        mkdir -p "$cache" "${program%/*}"
        exec 9>"$cache/$name.lock"
        flock 9
        if [ ! -x "$program" ]; then
            made=$(mktemp -d "$cache/making.XXXXXX")
            trap 'rm -rf "$made"' EXIT
            "${@:2}" "$made"
            mv "$made/$name" "$program"
        fi
    fi
    echo "$program"
}
