#!/bin/bash -eu
# Builds the fuzzers in the image of OSS-Fuzz. It changes the checkout in $SRC/nodens, which
# is thrown away with the image. A test in test/fuzz runs it with a builder that only checks.
cd "$SRC/nodens"

# FuzzProgram of server/kernelpath is missing: it loads a program into the kernel, which needs
# capabilities that fuzzers do not have there.
fuzzers='
cache FuzzHistory
cache FuzzRead
cmd/nodens/app/page FuzzRequest
cmd/nodens/migrate FuzzMake
internal/baseline FuzzDecode
internal/config FuzzNameservers
internal/config FuzzParse
internal/config FuzzRender
internal/config FuzzSearches
internal/expression FuzzParse
internal/grpcframe FuzzParse
internal/handover FuzzUnpack
internal/resolvconf FuzzFile
internal/sketch FuzzBounds
internal/wire FuzzClientOption
internal/wire FuzzCopyAsAlias
internal/wire FuzzDeny
internal/wire FuzzName
internal/wire FuzzPathsAlias
internal/wire FuzzPathsBuilt
internal/wire FuzzPathsCanonical
internal/wire FuzzPathsCopyAsAlias
internal/wire FuzzPathsFailed
internal/wire FuzzPathsFixpoint
internal/wire FuzzPathsKept
internal/wire FuzzPathsParse
internal/wire FuzzQuery
internal/wire FuzzResponse
internal/wire FuzzRestoreAny
internal/wire FuzzRestoreSaved
internal/wire FuzzRewrite
internal/wire FuzzRoundTrip
internal/wire FuzzSynthesize64
internal/wire FuzzTSIG
internal/wire FuzzText
kubernetes FuzzAnswer
kubernetes FuzzManifest
kubernetes FuzzParseDashed
kubernetes FuzzRestore
kubernetes FuzzSavedRecord
kubernetes/reflector FuzzStream
netsetup FuzzMonitorMessages
netsetup FuzzParseConntrack
netsetup FuzzRoutes
server/balance FuzzWeights
server/dnstap FuzzControl
server/hosts FuzzLines
server/reply FuzzReply
server/resolver FuzzFormat
server/resolver FuzzGuards
server/resolver FuzzServe
server/rewrite FuzzChange
server/template FuzzAnswer
server/tunnel FuzzObserve
server/zonefile FuzzPolicies
server/zonefile FuzzTransfer
server/zonefile FuzzZone
test/bench/harness FuzzParse
test/rig/load FuzzRespond
test/scenario FuzzParse
upstream FuzzDatagram
upstream FuzzQUICStream
upstream FuzzStream
'

# The builder replaces a file of the standard library. The go command does not let it do so
# in a toolchain that it has downloaded because go.mod asks for a newer one.
goroot=$(go env GOROOT)
if [[ $goroot == "$(go env GOMODCACHE)"/* ]]; then
	GOROOT=$(mktemp -d)
	cp -r "$goroot/." "$GOROOT"
	chmod -R u+w "$GOROOT"
	export GOROOT GOTOOLCHAIN=local PATH="$GOROOT/bin:$PATH"
fi

# prepare changes a package to what the builder takes. It compiles all test files of a directory
# as ordinary files, so they must belong to one package. External tests (package x_test) with
# fuzzers become a package of their own in the directory external; the package's other test
# files become ordinary files, for what they export. Without fuzzers, external tests are
# removed.
prepare() {
	local dir=$1 internal=$2 external=$3 file
	[ -n "$external" ] || return 0
	cd "$dir"
	if ! grep -qs '^func Fuzz' $external; then
		rm $external
		return
	fi
	mkdir external
	echo "package external" >external/external.go
	for file in $external; do
		sed 's/^package [a-z0-9]*_test$/package external/' "$file" >"external/$file"
		rm "$file"
	done
	for file in $internal; do
		mv "$file" "${file%_test.go}_exported.go"
	done
}

# The packages are listed before any is changed.
packages=$(go list -f '{{.Dir}}|{{join .TestGoFiles " "}}|{{join .XTestGoFiles " "}}' $(echo "$fuzzers" | sed -n 's|\(.*\) .*|./\1|p' | sort -u))
while IFS='|' read -r dir internal external; do
	(prepare "$dir" "$internal" "$external")
done <<<"$packages"

while read -r dir fuzzer; do
	[ -n "$dir" ] || continue
	name=${dir//\//_}_$fuzzer
	if grep -qs "^func $fuzzer(" "$dir"/external/*_test.go; then
		dir=$dir/external
	fi
	compile_native_go_fuzzer_v2 "github.com/nodens-dns/nodens/$dir" "$fuzzer" "$name"
done <<<"$fuzzers"
