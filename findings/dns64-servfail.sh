#!/usr/bin/env bash
# With BIND or Knot Resolver as DNS64, an IPv6-only client can't reach a name whose AAAA query gets SERVFAIL.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libfstrm0 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
debian knot-resolver=5.6.0-1+deb12u1 dns-root-data libbpf1 libdnssec9 libelf1 libknot13 libluajit-5.1-2 libxdp1 libzscanner4 libgnutls30
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libpython3.11 libexpat1
python3 - <<'PYTHON'
from loopback import *

FAILURES = {"servfail.example.": SERVFAIL, "refused.example.": REFUSED, "missing.example.": NXDOMAIN}
upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, FAILURES.get(name, NOERROR) if qtype == AAAA or name.startswith("missing") else NOERROR), 0))
# kresd looks for its Lua modules below /usr/lib only, and for the root keys below /usr/share.
OVERLAY = 'for d in lib share; do mount -t overlay overlay -o "lowerdir=$work/root/usr/$d:/usr/$d" /usr/$d || exit 2; done; exec kresd "$@"'


def bind(port):
    return bind9("named", port, f"dnssec-validation no; forward only; forwarders port {upstream.port} {{ 127.0.0.1; }}; dns64 64:ff9b::/96 {{ clients {{ any; }}; }};")


def kresd(port):
    directory = folder("kresd")
    return "unshare", "--user", "--map-root-user", "--mount", "bash", "-c", OVERLAY, "kresd", "-n", "-q", "-c", write(
        "kresd.conf", f"""net.listen("127.0.0.1", {port}, {{kind = "dns"}})
cache.open(20 * MB, "lmdb://{directory}/cache")
trust_anchors.remove(".")
modules.unload("ta_update")
modules.unload("priming")
modules.unload("detect_time_skew")
modules.load("dns64")
dns64.config("64:ff9b::")
policy.add(policy.all(policy.FORWARD("127.0.0.1@{upstream.port}")))
"""), directory


def unbound(port):
    return forwarding_unbound("unbound", port, {".": f"127.0.0.1@{upstream.port}"}, modules="dns64 iterator")


def answered(program):
    """Returns the answers to AAAA queries: an address, or the RCODE."""
    port, found = free_port(), []
    p = start(*program(port), ready=answers(port))
    for name in ("good.example.", *FAILURES):
        r, _ = ask(port, name, AAAA)
        found.append("an address" if rcode(r) == NOERROR and r[7] else RCODES.get(rcode(r)))
    end(p)
    return found


by_bind, by_kresd, by_unbound = answered(bind), answered(kresd), answered(unbound)
conclude("if the AAAA query gets SERVFAIL or REFUSED, the address is made from the A record (RFC 6147, 5.1.2: only NXDOMAIN is passed on)",
         "BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3), Knot Resolver 5.6.0 (Debian 5.6.0-1+deb12u1); unbound 1.17.1 (Debian 1.17.1-2+deb12u4) for comparison",
         f"no AAAA record, SERVFAIL, REFUSED and NXDOMAIN become, by BIND: {', '.join(by_bind)}; by Knot Resolver: {', '.join(by_kresd)}; by unbound: {', '.join(by_unbound)}",
         by_bind == by_kresd == ["an address", "SERVFAIL", "SERVFAIL", "NXDOMAIN"] and by_unbound == ["an address"] * 3 + ["NXDOMAIN"])
PYTHON
