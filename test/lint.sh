#!/usr/bin/env bash
# gofmt, go vet, golangci-lint and actionlint, at the versions that test/lint and test/actionlint pin. The commands also
# build on the systems of operators' workstations: what needs Linux is in files named *_linux.go, and what they do
# elsewhere in *_other.go.
set -euo pipefail
cd "$(dirname "$0")/.."
sh test/install.sh git
unformatted=$(gofmt -l $(git ls-files '*.go'))
if [ -n "$unformatted" ]; then
	echo "gofmt would change: $unformatted" >&2
	exit 1
fi
if git grep -nE '^(<{7}|>{7}) ' >&2; then
	echo "a merge has left these lines: choose what stays, and remove them" >&2
	exit 1
fi
. test/goenv.sh # shares the build cache with the tests
export GOGC=400  # for the compiler and the linter, which then take less CPU time
{ read -r linter; read -r actionlint; } < <(go run ./test/peer/prebuild -path golangci-lint actionlint)
"$actionlint" -no-color .github/workflows/*.yml
for module in . daemonset/release test/dnstap; do
	go -C "$module" vet ./...
	(cd "$module" && "$linter" run ./...)
done
for system in darwin/arm64 windows/amd64; do
	export GOOS=${system%/*} GOARCH=${system#*/}
	go build -o /dev/null ./cmd/nodens
	go vet ./cmd/nodens ./cmd/nodens/advice ./cmd/nodens/kubectl ./cmd/nodens/migrate ./cmd/nodens/options
done
