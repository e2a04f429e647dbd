# Installs what a finding runs into its temporary folder, $work, and removes the folder at the end.
# Each script of this folder sources this file.
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
PYTHONPATH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# _apt, the user that apt downloads as, must be able to write there.
chmod 0755 "$work"
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
export PYTHONPATH work

# debian PACKAGE[=VERSION]… unpacks Debian packages without installing them. It exits with 2
# if the archive no longer has a version.
debian() {
	mkdir -p "$work/debs" "$work/root"
	chmod 0777 "$work/debs"
	if ! (cd "$work/debs" && apt-get download "$@" >"$work/apt.log" 2>&1); then
		cat "$work/apt.log" >&2
		exit 2
	fi
	for deb in "$work"/debs/*.deb; do
		dpkg -x "$deb" "$work/root"
	done
	libraries=$(find "$work/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
	export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	export PATH=$work/root/usr/sbin:$work/root/usr/bin:$PATH
}

# build NAME MODULE VERSION [REPLACEMENT…] builds $work/src, a main package that needs the Go module, as NAME. A replacement is
# one of go.mod: OLD => NEW VERSION.
build() {
	printf 'module finding\n\ngo 1.26.0\n\nrequire %s v%s\n' "$2" "$3" >"$work/src/go.mod"
	(($# < 4)) || printf 'replace %s\n' "${@:4}" >>"$work/src/go.mod"
	mkdir -p "$work/root/usr/bin"
	if ! (cd "$work/src" && CGO_ENABLED=0 GOFLAGS=-mod=mod GOWORK=off go build -trimpath -o "$work/root/usr/bin/$1" . >"$work/go.log" 2>&1); then
		cat "$work/go.log" >&2
		exit 2
	fi
	export PATH=$work/root/usr/bin:$PATH
}

# coredns VERSION PLUGIN… builds CoreDNS with some of its plugins.
coredns() {
	local version=$1 plugin
	shift
	mkdir -p "$work/src"
	{
		echo 'package main'
		echo 'import "github.com/coredns/coredns/coremain"'
		for plugin; do
			echo "import _ \"github.com/coredns/coredns/plugin/$plugin\""
		done
		echo 'func main() { coremain.Run() }'
	} >"$work/src/main.go"
	build coredns github.com/coredns/coredns "$version"
}

# caddy VERSION builds Caddy with its reverse proxy.
caddy() {
	mkdir -p "$work/src"
	cat >"$work/src/main.go" <<-'GO'
		package main

		import (
			caddycmd "github.com/caddyserver/caddy/v2/cmd"
			_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
		)

		func main() { caddycmd.Main() }
	GO
	build caddy github.com/caddyserver/caddy/v2 "$1"
}

# gvproxy VERSION builds gvproxy, which answers queries at 127.0.0.1:5300 like gvisor-tap-vsock's gateway of a virtual machine.
gvproxy() {
	mkdir -p "$work/src"
	cat >"$work/src/main.go" <<-'GO'
		package main

		import (
			"log"
			"net"

			"github.com/containers/gvisor-tap-vsock/pkg/services/dns"
			"github.com/containers/gvisor-tap-vsock/pkg/types"
		)

		func check(err error) {
			if err != nil {
				log.Fatal(err)
			}
		}

		func main() {
			udp, err := net.ListenPacket("udp", "127.0.0.1:5300")
			check(err)
			tcp, err := net.Listen("tcp", "127.0.0.1:5300")
			check(err)
			gateway := types.Record{Name: "gateway", IP: net.IPv4(192, 168, 127, 1)}
			server, err := dns.New(udp, tcp, []types.Zone{{Name: "containers.internal.", Records: []types.Record{gateway}}})
			check(err)
			go func() { check(server.ServeTCP()) }()
			check(server.Serve())
		}
	GO
	build gvproxy github.com/containers/gvisor-tap-vsock "$1"
}

# externaldns VERSION builds external-dns, which does one round of ExternalDNS for the records on its standard input, NAME TYPE TARGET… in
# each line. Its arguments are coredns, with ETCD_URLS in the environment, pdns URL KEY, or rfc2136 HOST PORT ZONE….
externaldns() {
	mkdir -p "$work/src"
	cat >"$work/src/main.go" <<-'GO'
		package main

		import (
			"bufio"
			"context"
			"log"
			"os"
			"strconv"
			"strings"

			"sigs.k8s.io/external-dns/endpoint"
			"sigs.k8s.io/external-dns/pkg/apis/externaldns"
			"sigs.k8s.io/external-dns/plan"
			"sigs.k8s.io/external-dns/provider"
			"sigs.k8s.io/external-dns/provider/coredns"
			"sigs.k8s.io/external-dns/provider/pdns"
			"sigs.k8s.io/external-dns/provider/rfc2136"
			"sigs.k8s.io/external-dns/registry/txt"
		)

		func check(err error) {
			if err != nil {
				log.Fatal(err)
			}
		}

		func main() {
			ctx, config := context.Background(), externaldns.NewConfig()
			config.TXTOwnerID, config.TXTPrefix = "cluster", "owner-"
			config.ManagedDNSRecordTypes = []string{"A", "AAAA", "CNAME"}
			var p provider.Provider
			var err error
			switch os.Args[1] {
			case "coredns":
				config.CoreDNSPrefix = "/skydns/"
				p, err = coredns.New(ctx, config, &endpoint.DomainFilter{})
			case "pdns":
				config.PDNSServer, config.PDNSAPIKey = os.Args[2], os.Args[3]
				p, err = pdns.New(ctx, config, &endpoint.DomainFilter{})
			default:
				config.RFC2136Host, config.RFC2136Zone = os.Args[2:3], os.Args[4:]
				config.RFC2136Port, err = strconv.Atoi(os.Args[3])
				check(err)
				config.RFC2136Insecure, config.RFC2136AXFR, config.RFC2136BatchChangeSize = true, true, 50
				p, err = rfc2136.New(ctx, config, &endpoint.DomainFilter{})
			}
			check(err)
			r, err := txt.New(config, p)
			check(err)
			current, err := r.Records(ctx)
			check(err)
			var desired []*endpoint.Endpoint
			for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
				f := strings.Fields(lines.Text())
				desired = append(desired, endpoint.NewEndpoint(f[0], f[1], f[2:]...))
			}
			desired, err = r.AdjustEndpoints(desired)
			check(err)
			changes := (&plan.Plan{
				Policies:       []plan.Policy{&plan.SyncPolicy{}},
				Current:        current,
				Desired:        desired,
				DomainFilter:   endpoint.MatchAllDomainFilters{&endpoint.DomainFilter{}, r.GetDomainFilter()},
				ManagedRecords: config.ManagedDNSRecordTypes,
				OwnerID:        r.OwnerID(),
			}).Calculate().Changes
			if changes.HasChanges() {
				check(r.ApplyChanges(context.WithValue(ctx, provider.RecordsContextKey, current), changes))
			}
		}
	GO
	GOTOOLCHAIN=go1.27.0 build external-dns sigs.k8s.io/external-dns "$1"
}

# signed_root makes $work/zones/root.signed, a root zone without local., like the real one, with the package bind9-utils. Its
# trust anchor is in $anchor.
signed_root() {
	mkdir "$work/zones"
	cat >"$work/zones/root" <<'ZONE'
$TTL 3600
. SOA ns.aaa. a.aaa. 1 7200 1800 86400 3600
. NS ns.aaa.
aaa. NS ns.aaa.
ns.aaa. A 127.0.0.1
zzz. NS ns.aaa.
ZONE
	anchor=$(cd "$work/zones" && key=$(dnssec-keygen -a ECDSAP256SHA256 -f KSK . 2>/dev/null) &&
		dnssec-signzone -S -z -o . root >/dev/null 2>&1 && grep -v '^;' "$key.key") || exit 2
	export anchor
}

# certificate makes $work/cert.pem and $work/key.pem for 127.0.0.1.
certificate() {
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
		-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
		-keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null
}

# look_ups RESOLV_CONF runs the Python program on standard input where /etc/resolv.conf has that text, names
# come from files and DNS, and there is only the loopback interface.
look_ups() {
	echo 'hosts: files dns' >"$work/nsswitch.conf"
	printf '%s\n' "$1" >"$work/resolv.conf"
	unshare -rmn bash -c '
		mount --bind "$work/resolv.conf" /etc/resolv.conf || exit 2
		mount --bind "$work/nsswitch.conf" /etc/nsswitch.conf || exit 2
		ip link set lo up || exit 2
		exec python3 -'
}

# resolved COMMANDS unpacks systemd-resolved and runs the Python program on standard input where it can be started, with
# 127.0.0.2:5300 as its server. COMMANDS, for bash, make the interfaces beside the loopback one.
resolved() {
	debian systemd-resolved=252.39-1~deb12u2 libsystemd-shared=252.39-1~deb12u2 libssl3 libgcrypt20 libip4tc2 libkmod2 libseccomp2
	mkdir -p "$work/etc/systemd"
	echo 'root:x:0:0::/:/bin/sh
systemd-resolve:x:0:0::/:/bin/sh' >"$work/etc/passwd"
	echo 'root:x:0:
systemd-resolve:x:0:' >"$work/etc/group"
	echo '[Resolve]
DNS=127.0.0.2:5300
Domains=~.
DNSSEC=no
LLMNR=no
MulticastDNS=no' >"$work/etc/systemd/resolved.conf"
	unshare -rmn bash -c '
		set -e
		trap "exit 2" ERR
		ip link set lo up
		'"$1"'
		mount -t tmpfs tmpfs /run
		mkdir -p /run/systemd/resolve
		mount --bind "$work/etc" /etc
		exec python3 -'
}
