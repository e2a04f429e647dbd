#!/usr/bin/env bash
# What `make test` runs: every test, then every fuzzer for a short while, and a
# summary. Binaries of other projects that the tests talk to are built on demand
# and kept outside of the tree (see test/peer).
set -uo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ]; then
	echo "make test needs root: it makes network namespaces and iptables rules of its own" >&2
	exit 1
fi
sh test/install.sh ip dig iptables nft conntrack dnsperf gcc curl setpriv sysctl pgrep git prometheus || exit 1
sh test/install.sh unbound dnsdist kresd pdns_recursor || echo "test/bench goes without them" >&2

# fuzztime runs the whole corpus of each fuzzer and some thousand new inputs; bugs
# that take longer to find are found by fuzzing for longer. It is a count and not a
# time, because a fuzzer that is interrupted by its time limit at the wrong moment
# reports the limit as a failure.
fuzztime=${NODENS_FUZZTIME:-5000x}

report=$(mktemp -d)
trap 'rm -rf "$report"' EXIT
. test/stage.sh

# A process with the race detector stays for a second when it ends, in case another of
# its threads is about to report something, and the tests start hundreds of them. What
# is reported is reported within a moment.
export GORACE="atexit_sleep_ms=20 ${GORACE:-}"

# tests runs go test, whose events go to the file of the report that comes first.
# -count=1: the go command would not run again what passed before and has not changed.
tests() {
	local file=$report/$1.json
	shift
	go test -count=1 -json "$@" >"$file"
}

# image tests the command behind make image, which is a module of its own.
image() {
	go -C daemonset/image test -count=1 -json -timeout 20m ./... >"$report/image.json"
}

# fuzz runs a package's fuzzers, one after the other. They are linked once; go test
# would link them again for each. New inputs go where it keeps them.
fuzz() {
	local package=$1 dir=$2 fuzzer
	shift 2
	go test -c -fuzz . -o "$report/fuzz.test" "$package" || return
	for fuzzer in "$@"; do
		(cd "$dir" && exec "$report/fuzz.test" -test.run '^$' -test.fuzz "^$fuzzer\$" -test.fuzztime "$fuzztime" \
			-test.fuzzminimizetime 100x -test.fuzzcachedir "$corpus/$package") >"$report/fuzz" 2>&1 || {
			echo "--- FAIL $package $fuzzer"
			cat "$report/fuzz"
			return 1
		}
	done
}

fuzzers() {
	local package dir names bad=0
	corpus=$(go env GOCACHE)/fuzz
	while read -r package dir; do
		names=$(grep -hos '^func Fuzz[A-Za-z0-9]*' "$dir"/*_test.go | cut -d ' ' -f 2)
		# shellcheck disable=SC2086
		[ -z "$names" ] || fuzz "$package" "$dir" $names || bad=1
	done < <(go list -f '{{.ImportPath}} {{.Dir}}' $units)
	return $bad
}

# Unit tests under the race detector; the suites under test/ and those of daemonset/ talk
# to other processes, where it sees nothing. Many wait more than they compute, so there are more
# of them at a time than cores, the slowest from the start on. The bench measures CPU
# and delays, so it runs alone.
units=$(go list ./netsetup ./cmd/nodens ./cmd/nodens/app ./... | grep -v -e /nodens/test/ -e /nodens/daemonset)
bench=./test/bench
suites=$(go list ./test/node ./test/differential ./test/... ./daemonset/... | grep -v -e /test/summary -e '/test/bench$')
# shellcheck disable=SC2086
{
	CGO_ENABLED=1 run "unit tests" tests units -race -p 3 -timeout 20m $units
	# Those that count allocations go without it. Benchmarks run once, so that they don't rot.
	run "allocation pins and benchmarks" tests pins -run Alloc -bench . -benchtime 1x -timeout 10m $units
	run "suites against real peers" tests suites -p 2 -timeout 40m $suites
	run "the image" image
	run "the bench, short" tests bench -timeout 40m $bench
	run "fuzzers" fuzzers
}
run "summary" go run ./test/summary "$report"/*.json
[ -n "${NODENS_STAGES:-}" ] || cat "$stages"
exit $failed
