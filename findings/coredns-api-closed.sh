#!/usr/bin/env bash
# CoreDNS does not back off from an API server whose load balancer closes connections at once.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind kubernetes
python3 - <<'PYTHON'
from apiserver import APIServer, item, service
from loopback import *

OUTAGE, LAST = 60, 30
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Balancer:
    """Passes connections on to an API server. In an outage, it sends a reply, if it has one, and closes them."""

    def __init__(self, url, failure):
        self.to, self.failure = ("127.0.0.1", int(url.rsplit(":", 1)[1])), failure
        self.outage, self.passed, self.refused = threading.Event(), [], []
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client, _ = self.socket.accept()
            if self.outage.is_set():
                self.refused.append(time.monotonic())
                with client:
                    if self.failure:
                        client.recv(65536)
                        client.sendall(self.failure)
                continue
            server = socket.create_connection(self.to)
            self.passed += client, server
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=(a, b), daemon=True).start()

    def copy(self, a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        self.close(a, b)

    def close(self, *sockets):
        for s in sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def fail(self):
        self.outage.set()
        self.close(*self.passed)


def run(label, failure):
    api, port = APIServer(item("Namespace", "shop"), service("web", "shop", "10.96.1.1")), free_port()
    balancer = Balancer(api.url, failure)
    conf = write("Corefile-" + label, f""".:{port} {{
    bind 127.0.0.1
    kubernetes cluster.local {{
        endpoint http://127.0.0.1:{balancer.port}
    }}
}}
""")
    start("coredns", "-conf", conf, ready=lambda: rcode(ask(port, "web.shop.svc.cluster.local.")[0]) == NOERROR)
    return balancer


balancers = run("closed", None), run("unavailable", UNAVAILABLE)
begin = time.monotonic()
for b in balancers:
    b.fail()
time.sleep(OUTAGE)
closed, unavailable = (sum(t > begin + OUTAGE - LAST for t in b.refused) for b in balancers)
conclude("in an outage, the API server is asked less and less often, at last each 30 to 60 s for each kind, as client-go says",
         "CoreDNS 1.15.0, kubernetes (client-go 0.37.1, three kinds)",
         f"a load balancer that closes connections at once gets {closed} connections in the last {LAST} s of an outage of {OUTAGE} s; "
         f"one that answers 503 gets {unavailable}",
         closed >= 50 and unavailable <= 25)
PYTHON
