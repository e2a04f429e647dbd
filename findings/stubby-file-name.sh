#!/usr/bin/env bash
# stubby reads a configuration file as YAML only if its name ends in .yml or .yaml.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian stubby=1.6.0-3+b1 libgetdns10=1.6.0-3+b1 libbsd0 libevent-2.1-7 libidn2-0 libunbound8 libyaml-0-2 libssl3
python3 - <<'PYTHON'
from loopback import *

upstream, results = Upstream(lambda name, qtype, q, tcp: (reply(q), 0)), []
for name in "stubby.yml", "stubby.yaml", "stubby.conf":
    port = free_port()
    conf = write(name, f"""resolution_type: GETDNS_RESOLUTION_STUB
dns_transport_list:
  - GETDNS_TRANSPORT_UDP
listen_addresses:
  - 127.0.0.1@{port}
upstream_recursive_servers:
  - address_data: 127.0.0.1
    port: {upstream.port}
""")
    p = start("stubby", "-C", conf)
    time.sleep(2)
    results.append("exits with %s" % p.poll() if p.poll() is not None else RCODES.get(rcode(ask(port, "name.example.")[0])))
    end(p)
conclude("the same file is accepted under any name, such as one of a mounted ConfigMap",
         "stubby 0.3.0 (Debian 1.6.0-3+b1)",
         "stubby.yml: {}; stubby.yaml: {}; stubby.conf: {}".format(*results),
         results == ["NOERROR", "NOERROR", "exits with 1"])
PYTHON
