#!/usr/bin/env bash
# Knot Resolver fails queries at once after it has waited for several others.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian knot-resolver=5.6.0-1+deb12u1 dns-root-data libbpf1 libdnssec9 libelf1 libjemalloc2 libknot13 liblmdb0 libluajit-5.1-2 libnghttp2-14 libuv1 libxdp1 libzscanner4 libgnutls30
# kresd looks for its Lua modules below /usr/lib only, and for the root keys below /usr/share.
unshare --user --map-root-user --mount bash -c '
	for d in lib share; do
		mount -t overlay overlay -o "lowerdir=$work/root/usr/$d:/usr/$d" /usr/$d || exit 2
	done
	exec python3 -' <<'PYTHON'
from collections import Counter
from loopback import *

upstream = Upstream(lambda name, qtype, q, tcp: (reply(q), 1))
port, directory = free_port(), folder("kresd")
conf = write("kresd.conf", f"""net.listen("127.0.0.1", {port}, {{kind = "dns"}})
cache.open(20 * MB, "lmdb://{directory}/cache")
trust_anchors.remove(".")
modules.unload("ta_update")
modules.unload("priming")
modules.unload("detect_time_skew")
policy.add(policy.all(policy.FORWARD("127.0.0.1@{upstream.port}")))
""")
start("kresd", "-n", "-q", "-c", conf, directory, ready=answers(port))
results, threads, begin = Counter(), [], time.monotonic()


def client(i):
    r, seconds = ask(port, f"n{i}.example.")
    results[RCODES.get(rcode(r)) + (" at once" if seconds < 0.2 else "")] += 1


for i in range(1250):
    time.sleep(max(0, begin + i / 250 - time.monotonic()))
    threads.append(threading.Thread(target=client, args=(i,)))
    threads[-1].start()
for t in threads:
    t.join()
asked = len({name for _, name, _, _ in upstream.queries if name.startswith("n")})
conclude("a forwarder that takes 1 s for all names is waited for; clients have 5 s",
         "Knot Resolver 5.6.0 (Debian 5.6.0-1+deb12u1)",
         f"of 1250 names in 5 s, {results['SERVFAIL at once']} get SERVFAIL within 200 ms and {results['NOERROR']} an address; "
         f"{1250 - asked} were never sent to the forwarder",
         results["SERVFAIL at once"] >= 20)
PYTHON
