#!/bin/sh
# Installs the Debian packages of those programs in the arguments that are missing. Exits with
# 1 if one can't be installed.
set -eu

package() {
	case $1 in
	dig) echo bind9-dnsutils ;;
	ip) echo iproute2 ;;
	iptables) echo iptables ;;
	nft) echo nftables ;;
	ipset) echo ipset ;;
	conntrack) echo conntrack ;;
	kdig) echo knot-dnsutils ;;
	host) echo bind9-host ;;
	drill) echo ldnsutils ;;
	haproxy) echo haproxy ;;
	adnshost) echo adns-tools ;;
	dnsget) echo udns-utils ;;
	getdns_query) echo getdns-utils ;;
	unbound-host) echo unbound-host ;;
	dnspython) echo python3-minimal python3-dnspython ;;
	dnsperf) echo dnsperf ;;
	gcc) echo gcc libc6-dev ;;
	unbound) echo unbound ;;
	dnsdist) echo dnsdist ;;
	kresd) echo knot-resolver ;;
	knotd) echo knot ;;
	named) echo bind9 ;;
	dnsmasq) echo dnsmasq-base ;;
	stubby) echo stubby ;;
	nsd) echo nsd ;;
	pdns_recursor) echo pdns-recursor ;;
	curl) echo curl ;;
	setpriv | nsenter) echo util-linux ;;
	sysctl | pgrep) echo procps ;;
	git) echo git ;;
	openssl) echo openssl ;;
	containerd | ctr) echo containerd ;;
	runc) echo runc ;;
	/usr/lib/cni/bridge) echo containernetworking-plugins ;;
	prometheus | promtool) echo prometheus ;;
	chromium-headless-shell) echo chromium-headless-shell fonts-dejavu-core ;;
	busybox) echo busybox-static ;;
	musl-gcc) echo musl-tools musl-dev ;;
	c-ares) echo libc-ares-dev ;;
	clang-14) echo clang-14 ;;
	clang-19) echo clang-19 ;;
	qemu-system-x86_64) echo qemu-system-x86 ;;
	qemu-system-aarch64) echo qemu-system-arm ;;
	qemu-aarch64) echo qemu-user ;;
	xz) echo xz-utils ;;
	llvm-strip-14) echo llvm-14 ;;
	*) echo "test/install.sh: unknown program $1" >&2; exit 1 ;;
	esac
}

# present reports whether a program, a library of Python, or c-ares is there. busybox goes into images, so it must be linked statically.
present() {
	if [ "$1" = dnspython ]; then
		/usr/bin/python3 -c 'import dns.resolver' 2>/dev/null
		return
	fi
	if [ "$1" = c-ares ]; then
		[ -e /usr/include/ares.h ]
		return
	fi
	command -v "$1" >/dev/null 2>&1 || return 1
	[ "$1" != busybox ] || ! ldd "$(command -v busybox)" >/dev/null 2>&1
}

missing=
for program in "$@"; do
	present "$program" || missing="$missing $(package "$program")"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	echo "missing packages, which this script installs only as root on Debian:$missing" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# Debian starts servers when it installs them, unless this file forbids it. Tests must
# not occupy port 53.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing >/dev/null
