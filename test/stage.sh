# For the scripts that run one thing after the other and say at the end how long each
# took. The caller has a folder for its files in $report.

# Without the tree's folder in what is compiled, a clone of it finds what another has.
GOFLAGS="$(go env GOFLAGS) -trimpath"
export GOFLAGS

# stages is the file with the times; whoever calls this script may have one already.
stages=${NODENS_STAGES:-$report/stages}
failed=0

# run runs a command and goes on if it fails.
run() {
	local name=$1 began=$SECONDS verdict=ok
	shift
	echo "== $name"
	"$@" || { failed=1; verdict=FAIL; }
	printf '%6d s  %-4s  %s\n' $((SECONDS - began)) $verdict "$name" >>"$stages"
}
