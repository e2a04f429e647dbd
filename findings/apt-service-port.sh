#!/usr/bin/env bash
# apt does not connect to the port of a URL if the Service has another port with the name http.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian apt=2.6.1 libapt-pkg6.0=2.6.1 libgcrypt20 libgnutls30 liblz4-1 libseccomp2 libsystemd0 libxxhash0 libzstd1 libudev1
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

HOST = "mirror.shop.svc.cluster.local"
TARGET = struct.pack("!3H", 0, 100, 8080) + b"".join(bytes([len(l)]) + l.encode() for l in HOST.split(".")) + b"\0"


def handle(name, qtype, q, tcp):
    """Has a Service with two ports, packages at 80 and http at 8080, with the records that clusters have for it."""
    if name == f"_http._tcp.{HOST}." and qtype == SRV:
        return reply(q, rdata=TARGET), 0
    return reply(q, NOERROR if name == HOST + "." else NXDOMAIN, rdata=socket.inet_aton("127.0.0.2") if qtype == A else None), 0


Upstream(handle, port=53)
ports = []


class Handler(http.server.BaseHTTPRequestHandler):
    """Notes the port of a request."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        ports.append(self.server.server_address[1])
        self.send_error(404)


for port in 80, 8080:
    server = http.server.ThreadingHTTPServer(("127.0.0.2", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
work = os.environ["work"]
folder("state/lists/partial"), folder("cache/archives/partial"), folder("etc/apt.conf.d"), folder("etc/preferences.d"), folder("etc/trusted.gpg.d")
write("state/status", "")


def reached(url, *options):
    """Returns the ports that an update from the URL connects to."""
    ports.clear()
    settings = {"Dir::State": f"{work}/state", "Dir::State::status": f"{work}/state/status", "Dir::Cache": f"{work}/cache", "Dir::Etc": f"{work}/etc",
                "Dir::Etc::sourcelist": write("etc/sources.list", f"deb [trusted=yes] {url} ./\n"), "Dir::Bin::methods": f"{work}/root/usr/lib/apt/methods",
                "APT::Sandbox::User": "root", "Acquire::http::Proxy": "DIRECT"}
    words = [word for setting in (*(f"{k}={v}" for k, v in settings.items()), *options) for word in ("-o", setting)]
    subprocess.run(["apt-get", "update", *words], capture_output=True, env={**os.environ, "APT_CONFIG": "/dev/null"})
    return sorted(set(ports))


plain, explicit, cured = reached(f"http://{HOST}/debian"), reached(f"http://{HOST}:80/debian"), reached(f"http://{HOST}/debian", "Acquire::EnableSrvRecords=false")
conclude("apt-get update connects to port 80 of http://mirror.shop.svc.cluster.local/debian, the port of the scheme (RFC 9110, 4.2.1), like curl",
         "apt 2.6.1 (Debian)",
         f"the Service's ports are packages, 80, and http, 8080; apt connects to {plain}, as it asks for the SRV record of _http._tcp; to {explicit} with :80 in the URL, too, and to {cured} with Acquire::EnableSrvRecords=false",
         plain == explicit == [8080] and cured == [80])
PYTHON
