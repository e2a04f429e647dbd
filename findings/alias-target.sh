#!/usr/bin/env bash
# An alias in a public zone makes Knot Resolver and dnsmasq lose the Service that it leads to.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian knot-resolver=5.6.0-1+deb12u1 dns-root-data libbpf1 libdnssec9 libelf1 libjemalloc2 libknot13 liblmdb0 libluajit-5.1-2 libnghttp2-14 libuv1 libxdp1 libzscanner4 libgnutls30
debian dnsmasq-base=2.90-4~deb12u2 unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libprotobuf-c1 libpython3.11 libexpat1 libssl3 libdbus-1-3 libidn2-0 libjansson4 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libxtables12
python3 - <<'PYTHON'
from loopback import *

ALIAS, TARGET, OTHER = "www.shop.example.", "web.shop.svc.cluster.local.", "api.shop.svc.cluster.local."
SOA_RECORD = b"\0" + struct.pack("!2HLH", SOA, 1, 60, 22) + b"\0\0" + struct.pack("!5L", 1, 7200, 1800, 86400, 60)


def public(name, qtype, q, tcp):
    """A resolver that knows nothing of cluster.local: it answers NXDOMAIN for it, also to the alias."""
    if name != ALIAS and not name.endswith(".local."):
        return reply(q), 0
    r, records, (_, _, end) = reply(q, NXDOMAIN), b"", question(q)
    if name == ALIAS:
        target = query(TARGET)[12:-4]
        records = struct.pack("!3HLH", 0xC00C, 5, 1, 60, len(target)) + target
    return r[:6] + struct.pack("!3H", len(records) > 0, 1, 0) + r[12:end] + records + SOA_RECORD, 0


inside, outside = Upstream(lambda name, qtype, q, tcp: (reply(q), 0)), Upstream(public)


# kresd looks for its Lua modules below /usr/lib only, and for the root keys below /usr/share.
OVERLAY = 'for d in lib share; do mount -t overlay overlay -o "lowerdir=$work/root/usr/$d:/usr/$d" /usr/$d || exit 2; done; exec kresd "$@"'


def kresd(port):
    directory = folder("kresd")
    return "unshare", "--user", "--map-root-user", "--mount", "bash", "-c", OVERLAY, "kresd", "-n", "-q", "-c", write("kresd.conf", f"""net.listen("127.0.0.1", {port}, {{kind = "dns"}})
cache.open(20 * MB, "lmdb://{directory}/cache")
trust_anchors.remove(".")
modules.unload("ta_update")
modules.unload("priming")
modules.unload("detect_time_skew")
policy.add(policy.suffix(policy.FORWARD("127.0.0.1@{inside.port}"), {{todname("cluster.local")}}))
policy.add(policy.all(policy.FORWARD("127.0.0.1@{outside.port}")))
"""), directory


def unbound(port):
    return forwarding_unbound("unbound", port, {"cluster.local": f"127.0.0.1@{inside.port}", ".": f"127.0.0.1@{outside.port}"})


def answered(program):
    """Returns the answers for the Service, 10 s later for the alias, for the Service and for another
    one, and 15 s later for the Service again."""
    port = free_port()
    p = start(*program(port), ready=answers(port))
    found = []
    for wait, name in ((0, TARGET), (10, ALIAS), (0, TARGET), (0, OTHER), (15, TARGET)):
        time.sleep(wait)
        found.append(RCODES.get(rcode(ask(port, name)[0])))
    end(p)
    return found


wrong = {
    "kresd": answered(kresd),
    "dnsmasq": answered(lambda port: dnsmasq(port, outside.port, f"server=/cluster.local/127.0.0.1#{inside.port}")),
}
right = answered(unbound)
conclude("cluster.local is asked of its own forwarder, whatever another one says about the target of an alias; so does unbound",
         "Knot Resolver 5.6.0 (Debian 5.6.0-1+deb12u1), dnsmasq 2.90 (Debian 2.90-4~deb12u2); unbound 1.17.1 (Debian 1.17.1-2+deb12u4) for comparison",
         "; ".join(f"{p}: {TARGET} gets {f[0]}. Then {ALIAS}, an alias for it, gets {f[1]}. From then on the name itself gets {f[2]}, and {f[4]} 15 s later; "
                   f"another name {f[3]}" for p, f in wrong.items()) + f". unbound: {', '.join(right)}",
         right == ["NOERROR"] * 5 and all(f == ["NOERROR", "NXDOMAIN", "NXDOMAIN", "NOERROR", "NXDOMAIN"] for f in wrong.values()))
PYTHON
