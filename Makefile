# Everything that is needed is installed by these targets: on Debian, as root, what
# is missing comes from its packages; the rest from Go modules.

.PHONY: run test lint bench build

build:
	go build -o bin/nodens ./cmd/nodens

# An agent on 127.0.0.1:5353 with a sample cluster; no root, no cluster.
run: build
	@sh test/install.sh dig || echo "install dig (Debian: bind9-dnsutils) to try the lines below" >&2
	@exec bin/nodens sample

# Every test there is, with a summary; needs root for namespaces and rules.
test:
	@bash test/run.sh

lint:
	@bash test/lint.sh

# The numbers of BENCHMARKS.md, measured on this machine.
bench:
	@sh test/install.sh dig dnsperf gcc
	go run ./test/bench -out BENCHMARKS.md
