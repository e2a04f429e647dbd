#!/usr/bin/env bash
# Installs gremlins at the version that test/mutation/gremlins pins, and tests mutants with it. The
# arguments are test/mutation's.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${NODENS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodens}/gremlins
mkdir -p "$bin"
GOBIN=$bin go -C test/mutation/gremlins install github.com/go-gremlins/gremlins/cmd/gremlins
. test/goenv.sh
go run ./test/mutation -gremlins "$bin/gremlins" "$@"
