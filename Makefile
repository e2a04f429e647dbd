# These targets install what they need: on Debian, as root, from its packages; the rest
# from Go modules.

.PHONY: help run quick test soak flaky cover mutants test-arm64 fuzz lint bench build reference image release release-verify demo e2e e2e-release e2e-networks e2e-matrix kernels conformance

build:
	@test -x bin/nodens || echo "compiling nodens; the first time takes a minute or two" >&2
	go build -trimpath -buildvcs=auto -o bin/nodens ./cmd/nodens
	@$(if $(filter build,$(MAKECMDGOALS)),echo "built bin/nodens; next: make run" >&2,:)

# Man pages and Markdown pages of the commands, for a release: bin/reference.
reference:
	@mkdir -p bin/reference
	go test ./cmd/nodens -count=1 -run '^TestReference$$' -args -write "$(CURDIR)/bin/reference"

# An agent on 127.0.0.1:1053 with a sample cluster; no root, no cluster. For another port:
# bin/nodens sample --dns.port 1054
run: build
	@sh test/install.sh dig || echo "install dig (Debian: bind9-dnsutils) to try the lines below" >&2
	@exec bin/nodens sample

# The targets, each with the first sentence of its comment.
help:
	@awk '/^#/ { sub(/^# ?/, ""); text = text (text == "" ? "" : " ") $$0; next } \
		/=/ { next } /^[a-z][a-z0-9-]*:/ && text != "" { split($$1, name, ":"); match(text, /\.( |$$)/); \
		printf "make %-14s %s\n", name[1], substr(text, 1, RSTART ? RSTART : length(text)) } { text = "" }' $(MAKEFILE_LIST)

# The unit tests that need neither root nor other programs, in about a minute. Tests with processes, namespaces
# or sockets in plenty are in make test.
quick:
	@go test -short -p 4 $$(go list ./cache/... ./cmd/... ./internal/... ./kubernetes/... ./server/... ./upstream/... | grep -vE '/cmd/nodens(/app)?$$|/server(/kernelpath)?$$|/internal/(handover|portholder)$$|/kubernetes$$|/upstream$$')

# Every test, with few rounds, and a summary. Needs root for namespaces and rules.
test:
	@bash test/clean.sh bash test/run.sh

# The same tests with long seeds, rounds and counts, and an agent under churn for TIME.
TIME ?= 1h
soak:
	@bash test/clean.sh bash test/run.sh -soak -time $(TIME)

# Every test many times, on a machine that is busy with something else: 20 times if it takes
# less than a second, otherwise five times. It takes hours; for parts of it:
# make flaky FLAKY='-since HEAD~1 -limit 10m', or go run ./test/flaky -help
flaky:
	@sh test/install.sh ip dig iptables nft conntrack dnsperf gcc curl setpriv nsenter sysctl pgrep git prometheus
	@bash test/clean.sh go run ./test/flaky $(FLAKY)

# Statement coverage of the unit tests for each package, and what no test reaches on the query
# path. Needs root like the tests.
cover:
	@bash test/clean.sh bash test/cover.sh

# Changes the code in about MUTANTS places, in files chosen by SEED, and counts the changes that unit
# tests notice. Takes hours; run it once a week. See docs/testing.md.
MUTANTS ?= 400
SEED ?= 1
mutants:
	@bash test/clean.sh bash test/mutants.sh -count $(MUTANTS) -seed $(SEED)

# Unit tests compiled for arm64, in emulation. Takes some minutes.
test-arm64:
	@bash test/arm64.sh all

# Runs the fuzzer FUZZ for TIME, a duration or a number of inputs such as 500x. PKG chooses
# between packages with a fuzzer of that name. Without FUZZ it lists all fuzzers.
fuzz: TIME = 1m
fuzz:
	@go run ./test/fuzz -fuzz '$(FUZZ)' -package '$(PKG)' -time '$(TIME)'

# The image, for amd64 and arm64, as one file: bin/nodens-image.tar
image:
	go -C daemonset/release run . image -out "$(CURDIR)/bin/nodens-image.tar"

# A release in DIR, from the tag of VERSION: programs, image, chart, manifests, SBOMs, provenance,
# checksums, and with KEY signatures. docs/reference/release.md describes it.
IMAGE ?= nodens
BUILDER ?=
release: DIR = $(CURDIR)/bin/release-$(VERSION)
release:
	go -C daemonset/release run . make -version "$(VERSION)" -out "$(abspath $(DIR))" -image "$(IMAGE)" $(if $(KEY),-key "$(abspath $(KEY))") $(if $(BUILDER),-builder "$(BUILDER)")

# Checks the release in DIR: with KEY, the public key of who signed it, its signatures, too.
release-verify:
	@go -C daemonset/release run . verify $(if $(KEY),-key "$(abspath $(KEY))") "$(abspath $(DIR))"

# A real cluster of two nodes on this machine: installs nodens as the guides say, queries
# and scrapes it, breaks things, and prints a table of all checks. Needs root.
e2e:
	@sh test/install.sh nsenter ip iptables nft conntrack dig curl gcc ctr runc /usr/lib/cni/bridge prometheus busybox musl-gcc c-ares
	@bash test/clean.sh go run ./test/e2e -retry

# Two releases in a registry of such a cluster: installed by digest, upgraded and rolled back under
# load.
e2e-release:
	@sh test/install.sh nsenter ip iptables nft conntrack gcc ctr runc /usr/lib/cni/bridge busybox musl-gcc c-ares openssl git
	@bash test/clean.sh go run ./test/e2e -only release

# Such a cluster with nodens in it, installed by the chart of a release from a registry, to try
# things out. It prints what to try; Ctrl-C removes everything. Needs root.
demo:
	@sh test/install.sh nsenter ip iptables nft conntrack dig curl gcc ctr runc /usr/lib/cni/bridge prometheus busybox musl-gcc c-ares openssl git
	@echo "building Kubernetes, CoreDNS and Helm, which takes ten minutes the first time" >&2
	@bash test/clean.sh go run ./test/peer/prebuild e2e
	@bash test/clean.sh go run ./test/e2e -only demo -keep

# Names, upgrades, kills and policies on each pod network with both modes of kube-proxy, and with each
# release of Kubernetes, always with the kernel path off and on. Writes the table in
# docs/reference/networks.md. The first time, the builds take an hour of CPU time.
e2e-matrix: e2e-networks
	@bash test/clean.sh go run ./test/e2e -only network -network all -proxy nftables -network-out docs/reference/networks.md
	@bash test/clean.sh go run ./test/e2e -only network -network ptp -release all -network-out docs/reference/networks.md

# Of that, the pod networks with kube-proxy's mode iptables and the newest release.
e2e-networks:
	@sh test/install.sh nsenter ip iptables nft ipset conntrack gcc ctr runc /usr/lib/cni/bridge busybox musl-gcc c-ares clang-19
	@bash test/clean.sh go run ./test/e2e -only network -network all -network-out docs/reference/networks.md

# The agent and its answers in the kernel, on the kernels of Debian's releases, each in a virtual
# machine. Writes the table in the document. Takes half an hour and downloads 250 MB the first time.
kernels:
	@sh test/install.sh qemu-system-x86_64 qemu-system-aarch64 xz ip
	@bash test/clean.sh go run ./test/kernels -out docs/reference/kernels.md

# Kubernetes' own end-to-end tests of DNS in such a cluster: four releases of Kubernetes, with and
# without CoreDNS and the kernel path. Writes the table in the document. The first time, the
# builds take two hours of CPU time.
conformance:
	@sh test/install.sh dig nsenter ip iptables nft conntrack ctr runc /usr/lib/cni/bridge busybox
	@bash test/clean.sh go run ./test/conformance -out docs/reference/conformance.md

# The linters.
lint:
	@bash test/lint.sh

# Measures the numbers in docs/benchmarks on this machine, all at one commit, in about 50 minutes. For parts
# of it: go run ./test/bench -help. Sections whose rounds take minutes have one.
bench:
	@sh test/install.sh dnsperf gcc
	@sh test/install.sh unbound dnsdist kresd pdns_recursor named dnsmasq nsd knotd stubby || echo "measuring without them" >&2
	go run ./test/bench -seconds 0.7 -out docs/benchmarks
	go run ./test/bench -kernel -rounds 5 -seconds 0.7 -out docs/benchmarks
	go run ./test/bench -program -rounds 5 -seconds 0.7 -out docs/benchmarks
	go run ./test/bench -transports -seconds 0.5 -out docs/benchmarks
	go run ./test/bench -hotname -seconds 0.5 -out docs/benchmarks
	go run ./test/bench -floods -budgets -shares -rounds 1 -seconds 1.5 -out docs/benchmarks
	go run ./test/bench -attribution -rounds 5 -seconds 0.5 -out docs/benchmarks
	go run ./test/bench -watching -rounds 5 -seconds 0.5 -out docs/benchmarks
	go run ./test/bench -policies -rounds 5 -seconds 0.5 -out docs/benchmarks
	go run ./test/bench -worst -rounds 1 -seconds 1 -out docs/benchmarks
	go run ./test/bench -start -rounds 1 -out docs/benchmarks
	go run ./test/bench -upstreams -seconds 0.5 -out docs/benchmarks
	go run ./test/bench -outage -rounds 1 -outage-silence 5s -out docs/benchmarks
	go run ./test/bench -faults -rounds 1 -out docs/benchmarks
	go run ./test/bench -scale -rounds 1 -seconds 1 -out docs/benchmarks
	go run ./test/bench -fleet -fleet-sizes 10,25,50 -out docs/benchmarks
	go test ./test/bench/summary -update
