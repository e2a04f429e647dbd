#!/usr/bin/env bash
# Runs a command and fails if it leaves anything behind on the machine: network namespaces,
# interfaces, addresses, mounts, control groups, packet-filter rules, kernel settings, temporary
# files, or processes of the programs that tests start. Things that disappear don't count. The
# command's TMPDIR is a new directory, so that files of other programs don't count either.
#
#	test/clean.sh COMMAND...
set -uo pipefail
# The tools for the comparison must be there before the first one.
sh "$(dirname "$0")/install.sh" ip iptables nft sysctl || exit 1

report=$(mktemp -d "${TMPDIR:-/tmp}/clean-XXXXXX")
trap 'rm -rf "$report"' EXIT

# The command's temporary files. The path is short because it becomes part of sockets' names.
parent=${TMPDIR:-/tmp}
TMPDIR=$(mktemp -d "$parent/nt-XXXX")
export TMPDIR
chmod 755 "$TMPDIR" # tests run processes as other users
trap 'rm -rf "$report" "$TMPDIR"' EXIT

# mark is in the environment of the command and its children.
mark=NODENS_TEST_RUN=$TMPDIR
export "${mark?}"

# programs are the process names of what tests start.
programs='nodens|coredns|etcd|kube|containerd|runc|pause|prometheus|helm|dnsperf|unbound|dnsdist|kresd|pdns_recursor|pdns-r|named|dnsmasq|nsd|knotd|stubby|firewalld|dbus-daemon'

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
	find "$TMPDIR" -mindepth 1 -maxdepth 1 | sed 's/^/file /'
	processes | sort | uniq -c | sed 's/^ */processes: /'
}

# processes prints the names of the processes that the command has started, and of the programs
# whose parent has ended. Others, such as tests in another clone, don't count.
processes() {
	ps -e -o pid=,ppid=,comm= | grep -E "^ *[0-9]+ +[0-9]+ ($programs)" | while read -r pid ppid name; do
		if [ "$ppid" -eq 1 ] || grep -qzFx "$mark" "/proc/$pid/environ" 2>/dev/null; then
			echo "$name"
		fi
	done
}

# exclude_others leaves out what belongs to tests that another command runs at the same time: the
# names of namespaces and control groups contain the process ID of the test, nodens-PID- or
# nodens-e2e-PID-.
exclude_others() {
	while read -r line; do
		if [[ $line =~ nodens-(e2e-)?([0-9]+)- ]] && [ -e "/proc/${BASH_REMATCH[2]}/environ" ] &&
			! grep -qzFx "$mark" "/proc/${BASH_REMATCH[2]}/environ" 2>/dev/null; then
			continue
		fi
		echo "$line"
	done
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
comm -13 "$report/before" "$report/after" | exclude_others >"$report/left"
if [ -s "$report/left" ]; then
	echo "left behind by $*:" >&2
	cat "$report/left" >&2
	[ $code -ne 0 ] || code=1
fi
exit $code
