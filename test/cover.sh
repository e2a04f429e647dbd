#!/usr/bin/env bash
# Runs the unit tests with the coverage of all product packages counted together, prints a
# table, and lists what no test reaches on the query path, in the cache, the view and netsetup.
# NODENS_COVERPROFILE names a file to keep the profile in.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d "${TMPDIR:-/tmp}/nodens-cover-XXXXXX")
trap 'rm -rf "$dir"' EXIT
failed=0
. test/goenv.sh

profile=${NODENS_COVERPROFILE:-$dir/profile}
units=$(go list ./... | grep -v -e /nodens/test/ -e /nodens/daemonset)
mkdir "$dir/counters"
# Counters go to a directory, so that tests which run themselves again in a network
# namespace add theirs.
# shellcheck disable=SC2086
go test -count=1 -p 3 -timeout 20m -covermode=atomic -coverpkg="$(echo $units | tr ' ' ,)" $units \
	-args -test.gocoverdir="$dir/counters" >"$dir/tests" || { grep -v -e "^ok" -e "^coverage:" "$dir/tests" >&2; failed=1; }
go tool covdata textfmt -i="$dir/counters" -o="$profile"
go run ./test/coverage/report -in server,server/resolver,server/kernelpath,cache,kubernetes,kubernetes/reflector,netsetup,internal/wire "$profile"
exit $failed
