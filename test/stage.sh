# For scripts that run stages one after the other and print how long each one took. The
# caller sets $report to a directory for its files.

# All stages compile with the same settings, to share the build cache: without cgo, as
# the agent is built, and without the repository's path, which differs between clones.
export CGO_ENABLED=0
GOFLAGS="$(go env GOFLAGS) -trimpath"
export GOFLAGS

# stages is the file with the times. A calling script may have set it.
stages=${NODENS_STAGES:-${report:-/dev}/stages}
failed=0

# run runs a command, and continues if it fails.
run() {
	local name=$1 began=$SECONDS verdict=ok
	shift
	echo "== $name"
	"$@" || { failed=1; verdict=FAIL; }
	printf '%6d s  %-4s  %s\n' $((SECONDS - began)) $verdict "$name" >>"$stages"
}
