#!/usr/bin/env bash
# Tests mutants with gremlins at the version that test/mutation/gremlins pins. The arguments are test/mutation's.
set -euo pipefail
cd "$(dirname "$0")/.."
. test/goenv.sh
NODENS_GO=$(command -v go)
export NODENS_GO
gremlins=$(go run ./test/peer/prebuild -path gremlins)
program=$(mktemp "${TMPDIR:-/tmp}/nodens-mutation-XXXXXX")
trap 'rm -f "$program"' EXIT
go build -o "$program" ./test/mutation
PATH=$PWD/test/mutation/bin:$PATH "$program" -gremlins "$gremlins" "$@"
