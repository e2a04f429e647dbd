#!/usr/bin/env bash
# Runs the unit tests with the coverage of all product packages counted together, and prints
# the coverage of each package. Then it lists what no test reaches on the query path, in the cache, the
# view and netsetup: functions that are not covered in full, and the first line of each block that never ran.
# NODENS_COVERPROFILE names a file to keep the profile in, for go tool cover -html.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d "${TMPDIR:-/tmp}/nodens-cover-XXXXXX")
trap 'rm -rf "$dir"' EXIT
failed=0
. test/goenv.sh

module=$(go list -m)
listed='server|server/resolver|server/kernelpath|cache|kubernetes|kubernetes/reflector|netsetup|internal/wire'
profile=${NODENS_COVERPROFILE:-$dir/profile}
units=$(go list ./... | grep -v -e /nodens/test/ -e /nodens/daemonset)
mkdir "$dir/counters"
# Counters go to a directory, so that tests which run themselves again in a network
# namespace add theirs.
# shellcheck disable=SC2086
go test -count=1 -p 3 -timeout 20m -covermode=atomic -coverpkg="$(echo $units | tr ' ' ,)" $units \
	-args -test.gocoverdir="$dir/counters" >"$dir/tests" || { grep -v -e "^ok" -e "^coverage:" "$dir/tests" >&2; failed=1; }
go tool covdata percent -i="$dir/counters"
go tool covdata textfmt -i="$dir/counters" -o="$profile"
echo
go tool cover -func="$profile" | grep -E "^$module/($listed)/[^/]*:|^total:" | grep -v '100\.0%$'
echo
# A line of the profile is FILE:LINE.COLUMN,LINE.COLUMN STATEMENTS COUNT.
sed -nE "s#^$module/(($listed)/[^/]*):([0-9]+)\..* [1-9][0-9]* 0\$#\1 \3#p" "$profile" | sort -k1,1 -k2,2n |
	while read -r file line; do
		echo "$file:$line: $(sed -n "${line}p" "$file" | sed 's/^[[:space:]]*//')"
	done
exit $failed
