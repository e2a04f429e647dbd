#!/usr/bin/env bash
# Runs unit tests that are compiled for arm64, in user-mode emulation (qemu-user). It needs
# neither an arm64 machine nor root, except to install qemu-user.
#
#	test/arm64.sh short|all [FILE]
#
# short runs the packages with code that depends on how a processor lays out memory: messages,
# the cache, and the table that is shared with the kernel. all runs every package listed here.
# With FILE, the events of go test -json go there.
set -uo pipefail
cd "$(dirname "$0")/.."

short='./internal/wire ./cache ./server/kernelpath'
all="$short ./internal/epoch ./internal/handover ./internal/mmsg ./kubernetes ./kubernetes/reflector
	./server ./server/udp ./server/resolver ./upstream"

# Of netsetup, only tests of what needs no rules and interfaces run. Most others start
# themselves in a network namespace, and the kernel cannot execute a binary for arm64.
netsetup='^(TestPlan|TestPlanErrors|TestInterfaceNames|FuzzParseConntrack|FuzzRoutes|FuzzMonitorMessages)$'

# Each line of the two lists is a test, or a prefix of names that ends in *, and the reason. A
# subtest is given with all its parents.
#
# excluded is what cannot run in emulation.
excluded='
FuzzProgram                runs a program in the kernel: qemu-user has no bpf(2)
TestAdmission*             the same
TestAnswers                the same
TestBrokenPackets          the same
TestClientCounts*          the same
TestClientNumberReused     the same
TestClientsOf              the same
TestClientsSweep           the same
TestKilledProcess          the same
TestNoSamples              the same
TestOpen                   the same
TestReportClient           the same
TestSample*                the same
TestTornAnswers            the same
TestUnusualFrames          the same
TestVerifier               the same
TestWasteChanges           the same
TestWatchProgram           the same
TestObject                 compiles for the kernel, which is the same on every processor
TestSuccessorKilled        starts the test binary, which the kernel cannot execute
TestPredecessorKilled      the same
TestOtherNamespace         the same
TestOtherUsers             the same
TestProcess                the same
TestPredecessorFails/./far_too_many_files  qemu-user leaks descriptors for which a message has no room
TestSuccessorFails/./far_too_many_files    the same
TestSuccessorFailsToReturn gives each message 100 ms, which emulation on a busy machine exceeds
TestInheritedReuseport     attaches a program to sockets: qemu-user has no SO_ATTACH_REUSEPORT_CBPF
TestReuseport              the same
TestSendAfterClose         the same
TestIdle                   asserts that clients are served within 50 ms, which emulation on a busy machine exceeds
'
# long is what short leaves out in addition. It takes more than a second in emulation.
long='
TestBytesMatchHeap         measures memory
TestSnapshotMemory         measures memory
TestSnapshotCorrupt        repeats a check for each bit of a stream
TestLarge                  counts steps
TestWorst                  counts steps
TestShuffleLast            repeats a shuffle 48,000 times
'

case ${1:-} in
short) packages=$short left_out=$excluded$long flags=-short ;;
all) packages=$all left_out=$excluded flags= ;;
*)
	echo "usage: test/arm64.sh short|all [FILE]" >&2
	exit 2
	;;
esac
sh test/install.sh qemu-aarch64 || exit 1
. test/goenv.sh

# pattern prints the regular expression of the tests that are left out, for -skip. It fails if
# one of them does not exist, or has no reason.
pattern() {
	local name reason list=
	while read -r name reason; do
		[ -n "$name" ] || continue
		# shellcheck disable=SC2086
		grep -hqs "^func $(echo "$name" | sed 's/[/*].*//')" $(printf '%s/*_test.go ' $all) && [ -n "$reason" ] || {
			echo "test/arm64.sh: there is no test $name, or no reason to leave it out" >&2
			return 1
		}
		case $name in
		*'*') list="$list|^${name%'*'}" ;;
		*) list="$list|^$name\$" ;;
		esac
	done <<<"$left_out"
	echo "${list#|}"
}
skip=$(pattern) || exit 1
[ "$1" = short ] || echo "of netsetup, only $netsetup runs" >&2
echo "left out on arm64:$left_out" >&2

binaries=${NODENS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodens}/v2/tests/arm64
mkdir -p "$binaries"
export GOARCH=arm64
[ -z "${2:-}" ] || exec >"$2"

# run runs packages, with further flags of go test first.
run() {
	go test -count=1 -vet=off -timeout 60m -exec qemu-aarch64 -ldflags='-s -w' -o "$binaries/" ${json:-} "$@"
}
json=${2:+-json} failed=0
# shellcheck disable=SC2086
run -skip "$skip" $flags $packages || failed=1
[ "$1" = short ] || run -run "$netsetup" ./netsetup || failed=1
exit $failed
