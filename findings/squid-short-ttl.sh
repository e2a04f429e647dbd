#!/usr/bin/env bash
# Squid keeps an address for a minute, however short its TTL is, and requests fail when it is no longer in use.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian squid=5.7-2+deb12u6 squid-common=5.7-2+deb12u6 squid-langpack libecap3 libltdl7
unshare -mn bash -c '
	mount -t tmpfs tmpfs /dev/shm || exit 2
	ip link set lo up || exit 2
	exec python3 -' <<'PYTHON'
import http.server
import urllib.error
import urllib.request
from loopback import *

ROOT = os.environ["work"] + "/root"
OLD, NEW = "127.0.0.2", "127.0.0.3"
address = [OLD]
dns = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=5, rdata=socket.inet_aton(address[0]) if qtype == A else None), 0), port=53)
service = free_port()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_response(204)
        self.send_header("Connection", "close")
        self.end_headers()


def backend(at):
    server = http.server.ThreadingHTTPServer((at, service), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def proxy(extra):
    """Starts Squid and returns a function that sends a request through it, and its process."""
    port = free_port()
    directory = folder(f"squid-{port}")
    os.chmod(directory, 0o777)
    conf = write(f"squid-{port}.conf", f"""http_port 127.0.0.1:{port}
http_access allow all
cache deny all
access_log none
cache_effective_user nobody
cache_log {directory}/cache.log
coredump_dir {directory}
pid_filename {directory}/pid
netdb_filename none
pinger_enable off
unlinkd_program {ROOT}/usr/lib/squid/unlinkd
logfile_daemon {ROOT}/usr/lib/squid/log_file_daemon
error_directory {ROOT}/usr/share/squid-langpack/en
icon_directory {ROOT}/usr/share/squid/icons
mime_table {ROOT}/usr/share/squid/mime.conf
dns_nameservers 127.0.0.1
shutdown_lifetime 0 seconds
{extra}
""")

    def get():
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{port}"}))
        try:
            return opener.open(f"http://web.example:{service}/", timeout=30).status
        except urllib.error.HTTPError as e:
            return e.code

    def ready():
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        except OSError:
            return False

    return get, start("squid", "-N", "-f", conf, ready=ready)


def move(extra):
    """Returns the status before the name gets another address, those of ten requests from 6 s after that on, a second apart, and the seconds until one succeeds."""
    address[0], old = OLD, backend(OLD)
    get, p = proxy(extra)
    first = get()
    old.shutdown()
    old.server_close()
    new, moved = backend(NEW), time.monotonic()
    address[0] = NEW
    time.sleep(6)
    results = []
    for _ in range(10):
        results.append(get())
        time.sleep(1)
    while get() != 204 and time.monotonic() - moved < 90:
        time.sleep(1)
    took = time.monotonic() - moved
    end(p)
    new.shutdown()
    new.server_close()
    return first, results, took


first, kept, took = move("")
_, short, _ = move("negative_dns_ttl 1 second")
conclude("when the address of a name changes, requests go to the new one after the TTL, 5 s as in cluster.local",
         "Squid 5.7 (Debian 5.7-2+deb12u6)",
         f"{10 - kept.count(204)} of 10 requests from 6 s after the change on get {sorted(set(kept))}; the first success came after {took:.0f} s; "
         f"with `negative_dns_ttl 1 second`, which is also the shortest time for which addresses are kept, {short.count(204)} of 10 succeed",
         first == 204 and kept.count(204) == 0 and 50 < took < 80 and short.count(204) == 10)
PYTHON
