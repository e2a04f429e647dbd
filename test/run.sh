#!/usr/bin/env bash
# Installs what the tests need and runs them: see test/run. Gotestsum, at the version that test/gotestsum
# pins, prints failures as they come, then failed, skipped and slow tests. The last line has the counts. What fails
# beside other tests is run once more alone, when they have ended: only what fails then, too, is a failure. A data race
# or a panic always is.
# GOTESTSUM_JSONFILE names a file to keep the events in. Other projects' programs that tests need are
# built on demand and kept outside of the repository (see test/peer).
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
	echo "make test needs root: it creates network namespaces and iptables rules" >&2
	exit 1
fi
sh test/install.sh ip dig iptables nft conntrack dnsperf gcc curl setpriv nsenter sysctl pgrep git prometheus chromium-headless-shell
sh test/install.sh unbound dnsdist kresd pdns_recursor kdig knotd nsd named dnsmasq stubby qemu-aarch64 || echo "benchmarks and comparisons run without them" >&2
sh test/install.sh host drill haproxy dnspython musl-gcc adnshost dnsget getdns_query unbound-host || echo "test/clients runs without them" >&2
. test/goenv.sh
dir=$(mktemp -d "${TMPDIR:-/tmp}/nodens-run-XXXXXX")
trap 'rm -rf "$dir"' EXIT
go build -o "$dir/run" ./test/run
GOTESTSUM=$(go run ./test/peer/prebuild -path gotestsum)
export GOTESTSUM GOTESTSUM_JSONFILE=${GOTESTSUM_JSONFILE:-$dir/events}
"$GOTESTSUM" --format pkgname-and-test-fails --format-hide-empty-pkg --ignore-non-json-output-lines \
	--rerun-fails=1 --rerun-fails-max-failures=12 --rerun-fails-abort-on-data-race --post-run-command 'sh test/summary.sh' --raw-command -- "$dir/run" "$@"
