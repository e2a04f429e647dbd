#!/usr/bin/env bash
# Twisted's own resolver finds no Service, as it asks for ANY, to which CoreDNS has no answer.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian python3-twisted=22.4.0-4+deb12u1 python3-attr python3-automat python3-constantly python3-hyperlink python3-idna python3-incremental python3-pkg-resources python3-six python3-typing-extensions python3-zope.interface
coredns 1.15.0 bind kubernetes
python3 - <<'PYTHON'
from apiserver import APIServer, item
from loopback import *

NAME, ANY = "web.shop.svc.cluster.local", 255
PROGRAM = """
import sys
from twisted.internet import reactor
from twisted.names import client

resolver = client.createResolver([("127.0.0.1", int(sys.argv[2]))], hosts="/dev/null")
reactor.installResolver(resolver)
looking = reactor.resolve(sys.argv[3]) if sys.argv[1] == "resolve" else resolver.lookupAddress(sys.argv[3])
looking.addCallbacks(lambda _: print("found"), lambda failure: print(failure.type.__name__))
looking.addBoth(lambda _: reactor.stop())
reactor.run()
"""
port, api = free_port(), APIServer(item("Namespace", "shop"), item("Service", "web", "shop", spec={
    "type": "ClusterIP", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}))
start("coredns", "-conf", write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    kubernetes cluster.local {{
        endpoint {api.url}
    }}
}}
"""), ready=lambda: rcode(ask(port, NAME + ".")[0]) == NOERROR)
# Debian's Python, as the packages are for that.
environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
environment["PYTHONPATH"] = os.environ["work"] + "/root/usr/lib/python3/dist-packages"


def look_up(how, at):
    r = subprocess.run(["/usr/bin/python3", "-c", PROGRAM, how, str(at), NAME], capture_output=True, text=True, env=environment)
    if not r.stdout:
        sys.stderr.write(r.stderr)
        sys.exit(2)
    return r.stdout.strip()


plain = Upstream(lambda name, qtype, q, tcp: (reply(q), 0))
resolve, address = look_up("resolve", port), look_up("lookupAddress", port)
look_up("resolve", plain.port)
asked = {qtype for _, _, qtype, _ in plain.queries}
conclude("a program with Twisted's resolver finds a Service by its full name",
         "Twisted 22.4.0 (Debian 22.4.0-4+deb12u1), twisted.names; CoreDNS 1.15.0, kubernetes",
         f"reactor.resolve ends with {resolve}: it asks for ANY, to which CoreDNS answers NOERROR without a record; lookupAddress: {address}",
         (resolve, address, asked) == ("DNSLookupError", "found", {ANY}))
PYTHON
