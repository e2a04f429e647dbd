#!/usr/bin/env bash
# Knot Resolver's STUB policy passes the failure of one server on, though the other one has the name.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian knot-resolver=5.6.0-1+deb12u1 dns-root-data libbpf1 libdnssec9 libelf1 libjemalloc2 libknot13 liblmdb0 libluajit-5.1-2 libnghttp2-14 libuv1 libxdp1 libzscanner4 libgnutls30
# kresd looks for its Lua modules below /usr/lib only, and for the root keys below /usr/share.
unshare --user --map-root-user --mount bash -c '
	for d in lib share; do
		mount -t overlay overlay -o "lowerdir=$work/root/usr/$d:/usr/$d" /usr/$d || exit 2
	done
	exec python3 -' <<'PYTHON'
from loopback import *

NAMES = [f"n{i}.shop.svc.cluster.local." for i in range(60)]


def answered(policy, code):
    """Returns how many names are answered if one of two servers answers each query with that RCODE, at once, and the other one has the names and needs 50 ms."""
    # Knot Resolver judges a server by its address, whatever the port.
    good = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=5), 0.05), "127.0.0.3")
    other = Upstream(lambda name, qtype, q, tcp: (reply(q, code), 0), "127.0.0.2")
    port, directory = free_port(), folder(f"{policy}-{code}")
    conf = write("kresd.conf", f"""net.listen("127.0.0.1", {port}, {{kind = "dns"}})
cache.open(20 * MB, "lmdb://{directory}/cache")
trust_anchors.remove(".")
modules.unload("ta_update")
modules.unload("priming")
modules.unload("detect_time_skew")
policy.add(policy.suffix(policy.{policy}({{"127.0.0.2@{other.port}", "127.0.0.3@{good.port}"}}), {{todname("cluster.local")}}))
policy.add(policy.all(policy.REFUSE))
""")
    p = start("kresd", "-n", "-q", "-c", conf, directory, ready=answers(port))
    n = sum(rcode(ask(port, name)[0]) == NOERROR for name in NAMES)
    end(p)
    return n


servfail, refused = answered("STUB", SERVFAIL), answered("STUB", REFUSED)
cured = answered("FORWARD", SERVFAIL), answered("FORWARD", REFUSED)
conclude("with two servers in policy.STUB, a name that gets SERVFAIL or REFUSED from one of them is asked of the other one",
         "Knot Resolver 5.6.0 (Debian 5.6.0-1+deb12u1)",
         f"{servfail} of {len(NAMES)} names are answered if the quicker server answers SERVFAIL, and {refused} if it answers REFUSED; "
         f"with policy.FORWARD {cured[0]} and {cured[1]}",
         servfail < 40 and refused < 40 and min(cured) > 50)
PYTHON
