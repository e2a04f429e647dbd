#!/usr/bin/env bash
# With addressttl, Apache gives a backend's address up when a look-up fails.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian apache2-bin=2.4.71-1~deb12u1 libapr1 libaprutil1 libbrotli1 libcrypt1 libcurl4 libjansson4 libldap-2.5-0 liblua5.3-0 libnghttp2-14 libpcre2-8-0 libssl3 libxml2 libicu72
look_ups 'nameserver 127.0.0.1
options timeout:1 attempts:1' <<'PYTHON'
import http.server
import urllib.error
import urllib.request
from loopback import *

OLD, NEW = "127.0.0.2", "127.0.0.3"
address, code, silent = [OLD], [NOERROR], threading.Event()
dns = Upstream(lambda name, qtype, q, tcp: (None if silent.is_set() else
                                            reply(q, code[0], ttl=1, rdata=socket.inet_aton(address[0]) if qtype == A else None), 0), port=53)
service, reached = free_port(), []


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        reached.append(self.connection.getsockname()[0])
        self.send_response(204)
        self.send_header("Connection", "close")
        self.end_headers()


for a in (OLD, NEW):
    threading.Thread(target=http.server.ThreadingHTTPServer((a, service), Handler).serve_forever, daemon=True).start()


def apache(options):
    """Starts Apache with one process, as each has its own addresses, and returns its port."""
    port = free_port()
    directory, modules = folder(f"apache-{port}"), os.environ["work"] + "/root/usr/lib/apache2/modules"
    start("apache2", "-DFOREGROUND", "-f", write(f"apache-{port}.conf", f"""ServerRoot {directory}
ServerName localhost
PidFile {directory}/pid
ErrorLog {directory}/log
DefaultRuntimeDir {directory}
Mutex file:{directory} default
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule proxy_module {modules}/mod_proxy.so
LoadModule proxy_http_module {modules}/mod_proxy_http.so
StartServers 1
ServerLimit 1
ThreadsPerChild 8
MaxRequestWorkers 8
Listen 127.0.0.1:{port}
ProxyPass / http://web.shop.svc.cluster.local:{service}/ retry=0 {options}
"""), ready=lambda: get(port) == 204)
    return port


def get(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).status
    except urllib.error.HTTPError as e:
        return e.code
    except OSError:
        return None


def failed(port):
    """Returns how many of ten requests, half a second apart, get 500. They begin 4 s from now."""
    time.sleep(4)
    results = []
    for _ in range(10):
        results.append(get(port))
        time.sleep(0.5)
    return results.count(500) if results.count(500) + results.count(204) == 10 else results


ports, ways = (apache("addressttl=3"), apache("")), {}
address[0] = NEW
time.sleep(4)
for p in ports:
    get(p)
moved = reached[-2:]
for way in ("SERVFAIL", "silence"):
    if way == "SERVFAIL":
        code[0] = SERVFAIL
    else:
        silent.set()
    ways[way] = [failed(p) for p in ports]
    code[0] = NOERROR
    silent.clear()
    until = time.monotonic() + 20
    while get(ports[0]) != 204 and time.monotonic() < until:
        time.sleep(0.2)
conclude("with addressttl, an address is replaced by the one that a look-up finds, and kept if the look-up fails",
         "Apache 2.4.71 (Debian 2.4.71-1~deb12u1), ProxyPass with addressttl=3",
         "; ".join(f"with {way} from the name server, {ways[way][0]} of 10 requests get 500 ({ways[way][1]} without addressttl)" for way in ways) +
         f"; after a change of the address, requests go to {'the new' if moved[0] == NEW else 'the old'} one ({'the new' if moved[1] == NEW else 'the old'} one without addressttl)",
         moved == [NEW, OLD] and ways == {"SERVFAIL": [10, 0], "silence": [10, 0]})
PYTHON
