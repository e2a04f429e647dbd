#!/usr/bin/env bash
# Writes daemonset/seccomp/nodens.json: the system calls of agents, and of the programs that they start, while
# tests use each part of them. Needs root on Debian, and takes some minutes:
#
#	bash test/seccomp/record.sh
#
# Each agent is traced by a strace of its own. Time limits of tests that the tracing makes too slow don't matter: what has
# been called counts. equal.txt has what is added.
set -euo pipefail
cd "$(dirname "$0")/../.."
sh test/install.sh strace jq ip dig iptables nft conntrack gcc curl setpriv nsenter >&2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/calls"
go=$(command -v go)
# The suites build the agent with the go command. What this one builds starts the agent in strace.
cat >"$dir/bin/go" <<SHIM
#!/usr/bin/env bash
set -e
"$go" "\$@"
if [ "\$1" = build ] && [ "\${*: -1}" = ./cmd/nodens ]; then
	out=
	for ((i = 1; i < \$#; i++)); do
		[ "\${!i}" != -o ] || { next=\$((i + 1)) && out=\${!next}; }
	done
	agent=\$(mktemp "$dir/agent-XXXXXX")
	mv "\$out" "\$agent"
	printf '#!/bin/sh\nexec strace -D -f -c -o "$dir/calls/\$\$" %s "\$@"\n' "\$agent" >"\$out"
	chmod 0755 "\$out" "\$agent"
fi
SHIM
chmod 0755 "$dir" "$dir/bin/go"
chmod 0777 "$dir/calls"
while read -r package tests; do
	# go test puts its own folder before others in PATH.
	go test -count=1 -timeout 30m -exec "env PATH=$dir/bin:$PATH" -run "^Test($tests)" "./test/$package" </dev/null >&2 ||
		echo "some tests failed, as the agents are slower" >&2
done <<'SUITES'
node Ends|Readiness|StartErrors|FailOpen|GiveBack|HostListen|Egress$|KernelACL|KernelReload|KernelFlush
watch Resume|Restore
SUITES
while pgrep -f "^strace -D -f -c -o $dir" >/dev/null; do sleep 0.1; done # they write when their agents have ended
files=$(find "$dir/calls" -type f -size +0c | wc -l)
[ "$files" -ge 20 ] || { echo "only $files agents were traced" >&2 && exit 1; }
# A summary's lines end in the name of the call; the first two and the last two are no calls.
awk '$1 ~ /^[0-9.]+$/ && $NF != "total" && $NF ~ /^[a-z][a-z0-9_]*$/ { print $NF }' "$dir"/calls/* | sort -u >"$dir/names"
while read -r name others; do
	grep -qx "$name" "$dir/names" && printf '%s\n' $others
done <test/seccomp/equal.txt >"$dir/others" || true
mkdir -p daemonset/seccomp
sort -u "$dir/names" "$dir/others" | jq -R . | jq -s '{
	defaultAction: "SCMP_ACT_ERRNO", defaultErrnoRet: 38,
	archMap: [
		{architecture: "SCMP_ARCH_X86_64", subArchitectures: []},
		{architecture: "SCMP_ARCH_AARCH64", subArchitectures: []}
	],
	syscalls: [{action: "SCMP_ACT_ALLOW", names: .}]
}' >"$dir/nodens.json"
mv "$dir/nodens.json" daemonset/seccomp/nodens.json
echo "$files agents: $(jq '.syscalls[0].names | length' daemonset/seccomp/nodens.json) calls" >&2
