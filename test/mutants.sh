#!/usr/bin/env bash
# Builds gremlins at the version that test/mutation/gremlins pins, and tests mutants with it. The
# arguments are test/mutation's.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d "${TMPDIR:-/tmp}/nodens-mutants-XXXXXX")
trap 'rm -rf "$dir"' EXIT
. test/goenv.sh
go -C test/mutation/gremlins build -o "$dir/gremlins" github.com/go-gremlins/gremlins/cmd/gremlins
go run ./test/mutation -gremlins "$dir/gremlins" "$@"
