#!/usr/bin/env bash
# What `make test` runs: every test, every fuzzer for a short time, and a summary. Other
# projects' programs that tests need are built on demand and kept outside of the
# repository (see test/peer).
set -uo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ]; then
	echo "make test needs root: it creates network namespaces and iptables rules" >&2
	exit 1
fi
sh test/install.sh ip dig iptables nft conntrack dnsperf gcc curl setpriv sysctl pgrep git prometheus || exit 1
sh test/install.sh unbound dnsdist kresd pdns_recursor || echo "test/bench runs without them" >&2

# fuzztime runs the corpus of each fuzzer and some thousand new inputs. It is a count,
# because a fuzzer that reaches a time limit at the wrong moment reports a failure.
fuzztime=${NODENS_FUZZTIME:-5000x}

report=$(mktemp -d)
trap 'rm -rf "$report"' EXIT
. test/stage.sh

# The race detector delays the end of a process by one second, so that other threads can
# report races. Tests start hundreds of processes; 20 ms are enough.
export GORACE="atexit_sleep_ms=20 ${GORACE:-}"

# tests runs go test and writes its events to the report file named by the first
# argument. -count=1 disables the go command's cache of test results.
tests() {
	local file=$report/$1.json
	shift
	go test -count=1 -json "$@" >"$file"
}

# image tests the command behind make image, which is a module of its own.
image() {
	go -C daemonset/image test -count=1 -json -timeout 20m ./... >"$report/image.json"
}

# dnstap tests server/dnstap against golang-dnstap, in a module of its own.
dnstap() {
	go -C test/dnstap test -count=1 -json -timeout 5m -bench . -benchtime 1x ./... >"$report/dnstap.json"
}

# fuzz runs a package's fuzzers one after the other. It links them once, where go test
# would link them for each fuzzer. New inputs go to the go command's fuzz cache.
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

# Unit tests run under the race detector. The suites below test/ and daemonset/ talk to
# other processes, which it can't observe. Many tests wait more than they compute, so more
# packages than cores run at a time, the slowest first. The bench measures CPU time and
# latency, so it runs alone.
units=$(go list ./netsetup ./cmd/nodens ./cmd/nodens/app ./... | grep -v -e /nodens/test/ -e /nodens/daemonset)
bench=$(go list ./test/bench/...)
suites=$(go list ./test/node ./test/differential ./test/... ./daemonset/... | grep -v -e /test/summary -e /test/bench)
# shellcheck disable=SC2086
{
	CGO_ENABLED=1 run "unit tests" tests units -race -p 3 -timeout 20m $units
	# Tests that count allocations run without it, and so does a test that compares runs in
	# which a slow machine asks upstreams twice. Benchmarks run once, to keep them working.
	run "allocation pins and benchmarks" tests pins -run 'Alloc|^TestPermission$' -bench . -benchtime 1x -timeout 10m $units
	run "suites against real peers" tests suites -p 2 -timeout 40m $suites
	run "the image" image
	run "dnstap, read by golang-dnstap" dnstap
	run "the bench, short" tests bench -p 1 -timeout 40m $bench
	run "fuzzers" fuzzers
}
run "summary" go run ./test/summary "$report"/*.json
[ -n "${NODENS_STAGES:-}" ] || cat "$stages"
exit $failed
