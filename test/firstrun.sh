#!/usr/bin/env bash
# Measures the first minutes of a newcomer: it clones the repository into a new directory, runs `make run`
# there with an empty home directory, and measures the time to the first answer. Then it stops the agent and
# starts it once more, which is the warm start. It runs each dig line that `make run` prints, and fails if one
# has no answer, or if a run leaves files in its temporary directory. Uncommitted changes are not in the clone.
#
#	bash test/firstrun.sh [ROUNDS]
#	GOPROXY=file://$(go env GOMODCACHE)/cache/download bash test/firstrun.sh 1
#
# The second line downloads no modules: they come from this machine's own module cache.
set -euo pipefail
set -m # a background job is a process group, which an interrupt stops as Ctrl-C does
root=$(cd "$(dirname "$0")/.." && pwd)
limit=1800 # seconds for a start
dir=$(mktemp -d "${TMPDIR:-/tmp}/nodens-firstrun-XXXXXX")
job=
trap '[ -z "$job" ] || kill -KILL -- "-$job" 2>/dev/null || true; rm -rf "$dir" "$dir.times"' EXIT

# newcomer runs a command with what a newcomer's shell has because of the machine's network and Go. Modules are
# writable, so that the home directory can be removed.
newcomer() {
	local name passed=()
	for name in PATH GOPROXY GOSUMDB GONOSUMDB GOTOOLCHAIN SSL_CERT_FILE SSL_CERT_DIR HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
		[ -z "${!name:-}" ] || passed+=("$name=${!name}")
	done
	exec env -i HOME="$dir/home" TMPDIR="$dir/tmp" GOFLAGS=-modcacherw "${passed[@]}" "$@"
}

# cpu prints the seconds of CPU time of all processes that have ended.
cpu() { times | awk -F'[ms ]' 'NR == 2 { print $1 * 60 + $2 + $4 * 60 + $5 }'; }

# lines prints the commands to try, when make run has printed all: an empty line follows them.
lines() { awk '/^  dig / { found = 1; sub(/^ */, ""); text = text $0 "\n" } found && /^$/ { printf "%s", text }' "$dir/out"; }

# start runs make run until each command has an answer, and stops it. It sets took and used, in seconds.
start() {
	local before began=$EPOCHREALTIME command
	before=$(cpu)
	: >"$dir/out"
	(cd "$dir/nodens" && newcomer make run) >>"$dir/out" 2>"$dir/log" &
	job=$! took=
	until [ -n "$(lines)" ]; do await "print commands to try"; done
	: >"$dir/answers"
	while read -r command; do
		until (newcomer sh -c "$command") >"$dir/answer" 2>/dev/null && grep -q '[^[:space:]]' "$dir/answer"; do await "answer $command"; done
		took=${took:-$(echo "$EPOCHREALTIME $began" | awk '{ print $1 - $2 }')}
		{ echo && echo "\$ $command" && cat "$dir/answer"; } >>"$dir/answers"
	done < <(lines)
	kill -INT -- "-$job"
	wait "$job" 2>/dev/null || true
	job= used=$(cpu | awk -v before="$before" '{ print $1 - before }')
}

# await waits a little, and fails if make run has ended or the time is over.
await() {
	if ! kill -0 "$job" 2>/dev/null || [ "${EPOCHREALTIME%.*}" -gt $((${began%.*} + limit)) ]; then
		echo "make run did not $1; it wrote:" >&2
		cat "$dir/log" >&2
		exit 1
	fi
	sleep 0.05
}

echo "$(go version), $(nproc) CPUs, load $(cut -d ' ' -f 1-3 /proc/loadavg)"
printf 'seconds from `make run` to the first answer, and seconds of CPU\n\n%-8s %8s %8s %10s %10s\n' round cold warm 'cold CPU' 'warm CPU'
for round in $(seq "${1:-3}"); do
	rm -rf "$dir"/*
	mkdir -m 700 "$dir/home" "$dir/tmp"
	git clone -q --no-hardlinks "$root" "$dir/nodens"
	start
	cold=$took cold_used=$used
	start
	printf '%-8d %8.1f %8.1f %10.1f %10.1f\n' "$round" "$cold" "$took" "$cold_used" "$used"
	echo "$cold $took" >>"$dir.times"
	[ -z "$(ls -A "$dir/tmp")" ] || { echo "make run left files: $(ls -A "$dir/tmp")" >&2; exit 1; }
done
for column in 1 2; do cut -d ' ' -f $column "$dir.times" | sort -n | awk '{ at[NR] = $1 } END { print at[int((NR + 1) / 2)] }'; done |
	xargs printf 'median   %8.1f %8.1f\n'
cat "$dir/answers"
