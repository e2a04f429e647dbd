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
sh test/install.sh ip dig iptables nft conntrack dnsperf gcc curl setpriv sysctl pgrep git || exit 1
sh test/install.sh unbound dnsdist kresd pdns_recursor || echo "test/bench goes without them" >&2

# fuzztime runs the whole corpus of each fuzzer and some thousand new inputs; bugs
# that take longer to find are found by fuzzing for longer. It is a count and not a
# time, because a fuzzer that is interrupted by its time limit at the wrong moment
# reports the limit as a failure.
fuzztime=${NODENS_FUZZTIME:-5000x}

failed=0
run() {
	echo "== $1"
	shift
	"$@" || failed=1
}

report=$(mktemp -d)
trap 'rm -rf "$report"' EXIT

# traces is what a test could leave on the machine: namespaces, links, addresses,
# mounts, rules, and processes of the programs that the tests start.
traces() {
	echo "namespaces:"; ip netns list
	echo "addresses:"; ip -br addr
	echo "mounts:"; cut -d ' ' -f 2 /proc/mounts
	for save in iptables-save ip6tables-save; do
		echo "$save:"; $save 2>/dev/null | grep '^-A'
	done
	echo "processes:"
	for program in nodens coredns kube-apiserver etcd dnsperf unbound dnsdist kresd pdns_recursor; do
		pgrep -l "^$program" | cut -d ' ' -f 2
	done
}
# ip(8) makes this mount for the first namespace there is and keeps it.
names=/run/netns
mountpoint -q $names || ours=$names
traces | sort >"$report/before"

# Unit tests under the race detector; the suites under test/ talk to other
# processes, where it sees nothing. Those measure CPU and delays too, so the
# packages of the second group run one after the other. -count=1: the go command
# would not run again what passed before and has not changed.
units=$(go list ./... | grep -v /nodens/test/)
suites=$(go list ./test/... | grep -v /test/summary)
# shellcheck disable=SC2086
run "unit tests" bash -c 'CGO_ENABLED=1 go test -race -count=1 -json -timeout 20m "$@" >"$0"' "$report/units.json" $units
# shellcheck disable=SC2086
run "allocation pins, without the race detector" bash -c 'go test -count=1 -json -run Alloc -timeout 10m "$@" >"$0"' "$report/pins.json" $units
# shellcheck disable=SC2086
run "benchmarks, once each, so that they don't rot" bash -c 'go test -run "^$" -bench . -benchtime 1x -timeout 10m "$@" >"$0" || { cat "$0"; false; }' "$report/benchmarks" $units
# shellcheck disable=SC2086
run "suites against real peers" bash -c 'go test -count=1 -json -p 1 -timeout 40m "$@" >"$0"' "$report/suites.json" $suites
for package in $units; do
	for fuzzer in $(go test -list '^Fuzz' "$package" | grep '^Fuzz'); do
		run "fuzz ${package#*/nodens/} $fuzzer" go test -run '^$' -fuzz "^$fuzzer\$" -fuzztime "$fuzztime" -fuzzminimizetime 100x "$package"
	done
done
while [ -n "${ours:-}" ] && [ -z "$(ip netns list)" ] && mountpoint -q "$ours"; do
	umount "$ours" || break
done
traces | sort >"$report/after"
comm -13 "$report/before" "$report/after" >"$report/left"
run "left behind:" bash -c 'cat "$0" && ! test -s "$0"' "$report/left"
run "summary" go run ./test/summary "$report"/*.json
exit $failed
