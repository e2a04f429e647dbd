#!/usr/bin/env bash
# Runs a command and fails if it leaves anything behind on the machine: network namespaces,
# interfaces, addresses, mounts, control groups, packet-filter rules, kernel settings, temporary
# directories, or processes of the programs that tests start. Things that disappear don't count.
#
#	test/clean.sh COMMAND...
set -uo pipefail
# The tools for the comparison must be there before the first one.
sh "$(dirname "$0")/install.sh" ip iptables nft sysctl || exit 1

report=$(mktemp -d "${TMPDIR:-/tmp}/clean-XXXXXX")
trap 'rm -rf "$report"' EXIT

# programs are the process names of what tests start.
programs='nodens|coredns|etcd|kube|containerd|runc|pause|prometheus|helm|dnsperf|unbound|dnsdist|kresd|pdns_recursor'

# inventory prints a line for each thing that a test could leave behind.
inventory() {
	ip netns list | sed 's/^/namespace /'
	ip -br addr | sed 's/^/interface /'
	cut -d ' ' -f 2 /proc/mounts | sed 's/^/mount /'
	find /sys/fs/cgroup -type d -name '*nodens*' 2>/dev/null | sed 's/^/control group /'
	for save in iptables-save ip6tables-save iptables-legacy-save ip6tables-legacy-save; do
		$save 2>/dev/null | grep '^-A' | sed "s/^/$save /"
	done
	nft --stateless list ruleset 2>/dev/null | grep '^table' | sed 's/^/nft /'
	# kubelet and kube-proxy change these.
	sysctl vm.overcommit_memory kernel.panic kernel.panic_on_oops net.netfilter.nf_conntrack_max 2>/dev/null
	find "${TMPDIR:-/tmp}" -maxdepth 1 \( -name 'nodens*' -o -name 'Test*' \) | sed 's/^/file /'
	ps -e -o comm= | grep -E "^($programs)" | sort | uniq -c | sed 's/^ */processes: /'
}

# ip(8) makes this mount for the first namespace and keeps it.
netns=/run/netns
mountpoint -q $netns || mounted=$netns
inventory | sort >"$report/before"

"$@"
code=$?

while [ -n "${mounted:-}" ] && [ -z "$(ip netns list)" ] && mountpoint -q "$mounted"; do
	umount "$mounted" || break
done
inventory | sort >"$report/after"
comm -13 "$report/before" "$report/after" >"$report/left"
if [ -s "$report/left" ]; then
	echo "left behind by $*:" >&2
	cat "$report/left" >&2
	[ $code -ne 0 ] || code=1
fi
exit $code
