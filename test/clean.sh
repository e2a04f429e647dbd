#!/usr/bin/env bash
# Runs a command and fails if it leaves something on the machine that was not there
# before: namespaces, links, addresses, mounts, control groups, rules, kernel settings,
# temporary folders, or processes of the programs that tests start. What goes away is
# no fault.
#
#	test/clean.sh COMMAND...
set -uo pipefail
# What it looks with, before the first look.
sh "$(dirname "$0")/install.sh" ip iptables nft sysctl || exit 1

report=$(mktemp -d "${TMPDIR:-/tmp}/clean-XXXXXX")
trap 'rm -rf "$report"' EXIT

# programs are what tests start, as the kernel names their processes.
programs='nodens|coredns|etcd|kube|containerd|runc|pause|prometheus|helm|dnsperf|unbound|dnsdist|kresd|pdns_recursor'

# traces prints a line for each thing that a test could leave.
traces() {
	ip netns list | sed 's/^/namespace /'
	ip -br addr | sed 's/^/link /'
	cut -d ' ' -f 2 /proc/mounts | sed 's/^/mount /'
	find /sys/fs/cgroup -type d -name '*nodens*' 2>/dev/null | sed 's/^/control group /'
	for save in iptables-save ip6tables-save iptables-legacy-save ip6tables-legacy-save; do
		$save 2>/dev/null | grep '^-A' | sed "s/^/$save /"
	done
	nft --stateless list ruleset 2>/dev/null | grep '^table' | sed 's/^/nft /'
	# Those that kubelet and kube-proxy set.
	sysctl vm.overcommit_memory kernel.panic kernel.panic_on_oops net.netfilter.nf_conntrack_max 2>/dev/null
	find "${TMPDIR:-/tmp}" -maxdepth 1 \( -name 'nodens*' -o -name 'Test*' \) | sed 's/^/file /'
	ps -e -o comm= | grep -E "^($programs)" | sort | uniq -c | sed 's/^ */processes: /'
}

# ip(8) makes this mount for the first namespace there is and keeps it.
names=/run/netns
mountpoint -q $names || ours=$names
traces | sort >"$report/before"

"$@"
code=$?

while [ -n "${ours:-}" ] && [ -z "$(ip netns list)" ] && mountpoint -q "$ours"; do
	umount "$ours" || break
done
traces | sort >"$report/after"
comm -13 "$report/before" "$report/after" >"$report/left"
if [ -s "$report/left" ]; then
	echo "left behind by $*:" >&2
	cat "$report/left" >&2
	[ $code -ne 0 ] || code=1
fi
exit $code
