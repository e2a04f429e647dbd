#!/usr/bin/env bash
# Installs what the tests need and runs them: see test/run. Other projects' programs that
# tests need are built on demand and kept outside of the repository (see test/peer).
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
	echo "make test needs root: it creates network namespaces and iptables rules" >&2
	exit 1
fi
sh test/install.sh ip dig iptables nft conntrack dnsperf gcc curl setpriv nsenter sysctl pgrep git prometheus chromium-headless-shell
sh test/install.sh unbound dnsdist kresd pdns_recursor kdig knotd nsd named dnsmasq stubby || echo "benchmarks and comparisons run without them" >&2
sh test/install.sh host drill haproxy dnspython musl-gcc adnshost dnsget getdns_query unbound-host || echo "test/clients runs without them" >&2
. test/goenv.sh
exec go run ./test/run "$@"
