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
. test/goenv.sh # shares the build cache with the tests
linter=$(go run ./test/peer/prebuild -path golangci-lint)
for module in . daemonset/image test/dnstap; do
	go -C "$module" vet ./...
	(cd "$module" && "$linter" run ./...)
done
