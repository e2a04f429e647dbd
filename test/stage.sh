# For the scripts that run one thing after the other and say at the end how long each
# took. The caller has a folder for its files in $report.

# All compile in the same way, so that each finds what another has compiled: as the agent
# is, without C, and without the tree's folder in it, which differs from clone to clone.
export CGO_ENABLED=0
GOFLAGS="$(go env GOFLAGS) -trimpath"
export GOFLAGS

# stages is the file with the times; whoever calls this script may have one already.
stages=${NODENS_STAGES:-${report:-/dev}/stages}
failed=0

# run runs a command and goes on if it fails.
run() {
	local name=$1 began=$SECONDS verdict=ok
	shift
	echo "== $name"
	"$@" || { failed=1; verdict=FAIL; }
	printf '%6d s  %-4s  %s\n' $((SECONDS - began)) $verdict "$name" >>"$stages"
}
