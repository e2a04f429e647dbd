#!/usr/bin/env bash
# gofmt, go vet, and golangci-lint at the version that test/lint pins.
set -euo pipefail
cd "$(dirname "$0")/.."
sh test/install.sh git
unformatted=$(gofmt -l $(git ls-files '*.go'))
if [ -n "$unformatted" ]; then
	echo "gofmt would change: $unformatted" >&2
	exit 1
fi
bin=${NODENS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodens}/lint
mkdir -p "$bin"
GOBIN=$bin go -C test/lint install github.com/golangci/golangci-lint/v2/cmd/golangci-lint
. test/goenv.sh # shares the build cache with the tests
for module in . daemonset/image test/dnstap; do
	go -C "$module" vet ./...
	(cd "$module" && "$bin/golangci-lint" run ./...)
done
