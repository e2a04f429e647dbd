"""DNS on the loopback interface: queries, a name server, and programs under test."""

import asyncio
import atexit
import http.server
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time

A, NS, SOA, PTR, AAAA, SRV = 1, 2, 6, 12, 28, 33
NOERROR, SERVFAIL, NXDOMAIN, REFUSED = 0, 2, 3, 5
RCODES = {0: "NOERROR", 2: "SERVFAIL", 3: "NXDOMAIN", 5: "REFUSED", None: "no answer"}


def query(name, qtype=A, rd=True):
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.rstrip(".").split(".") if l)
    head = struct.pack("!6H", random.randrange(65536), 0x0100 if rd else 0, 1, 0, 0, 0)
    return head + labels + b"\0" + struct.pack("!2H", qtype, 1)


def question(message):
    """Returns the name in lower case, the type, and where the question ends."""
    labels, at = [], 12
    while message[at]:
        labels.append(message[at + 1 : at + 1 + message[at]].decode().lower())
        at += 1 + message[at]
    return ".".join(labels) + ".", struct.unpack("!H", message[at + 1 : at + 3])[0], at + 5


def reply(message, rcode=NOERROR, tc=False, ttl=1, rdata=None):
    """Answers with rdata, or 192.0.2.1 for type A; other types get an empty answer."""
    _, qtype, end = question(message)
    if rdata is None and qtype == A:
        rdata = bytes([192, 0, 2, 1])
    answers = [rdata] if rdata is not None and rcode == NOERROR and not tc else []
    flags = 0x8480 | (message[2] & 1) << 8 | (0x0200 if tc else 0) | rcode
    head = message[:2] + struct.pack("!5H", flags, 1, len(answers), 0, 0)
    records = b"".join(struct.pack("!3HLH", 0xC00C, qtype, 1, ttl, len(r)) + r for r in answers)
    return head + message[12:end] + records


def rcode(message):
    return None if message is None else message[3] & 15


def framed(message):
    return struct.pack("!H", len(message)) + message


def receive(stream):
    """Reads one message of a TCP connection; None at its end."""
    def exactly(n):
        data = b""
        while len(data) < n:
            more = stream.recv(n - len(data))
            if not more:
                return None
            data += more
        return data

    head = exactly(2)
    return head and exactly(struct.unpack("!H", head)[0])


def ask(port, name, qtype=A, timeout=5, tcp=False, address="127.0.0.1"):
    """Asks once. Returns the reply, None if there is none in time, and the seconds passed."""
    q, begin, r = query(name, qtype), time.monotonic(), None
    try:
        if tcp:
            with socket.create_connection((address, port), timeout) as s:
                s.settimeout(timeout)
                s.sendall(framed(q))
                r = receive(s)
        else:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.settimeout(timeout)
                s.connect((address, port))
                s.send(q)
                while (r := s.recv(65535))[:2] != q[:2]:
                    pass
    except OSError:
        r = None
    return r, time.monotonic() - begin


def free_port():
    """Returns a port that is free for UDP and TCP."""
    while True:
        with socket.socket() as t, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            t.bind(("127.0.0.1", 0))
            try:
                u.bind(t.getsockname())
            except OSError:
                continue
            return t.getsockname()[1]


class Upstream:
    """A name server for UDP and TCP. handle(name, qtype, message, tcp) returns the reply, or
    None for silence, and after how many seconds it is sent."""

    def __init__(self, handle, address="127.0.0.1", port=None):
        self.handle, self.address, self.port, self.queries = handle, address, port or free_port(), []
        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self.serve(ready)), daemon=True).start()
        ready.wait()

    async def serve(self, ready):
        loop, server = asyncio.get_running_loop(), self

        class UDP(asyncio.DatagramProtocol):
            def connection_made(self, transport):
                self.transport = transport

            def datagram_received(self, data, addr):
                server.answer(data, False, loop, lambda r: self.transport.sendto(r, addr))

        class TCP(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport, self.buffer = transport, b""

            def data_received(self, data):
                self.buffer += data
                while len(self.buffer) > 2:
                    n = 2 + struct.unpack("!H", self.buffer[:2])[0]
                    if len(self.buffer) < n:
                        break
                    server.answer(self.buffer[2:n], True, loop, lambda r: self.transport.write(framed(r)))
                    self.buffer = self.buffer[n:]

        await loop.create_datagram_endpoint(UDP, (self.address, self.port))
        await loop.create_server(TCP, self.address, self.port)
        ready.set()
        await asyncio.Event().wait()

    def answer(self, data, tcp, loop, send):
        name, qtype, _ = question(data)
        self.queries.append((time.monotonic(), name, qtype, tcp))
        message, delay = self.handle(name, qtype, data, tcp)
        if message is not None:
            loop.call_later(delay, send, message)


def folder(name):
    path = os.path.join(os.environ["work"], name)
    os.makedirs(path, exist_ok=True)
    return path


def write(name, text):
    """Writes a file into the temporary folder and returns its path."""
    path = os.path.join(os.environ["work"], name)
    with open(path, "w") as f:
        f.write(text)
    return path


def start(name, *args, ready=None, environment=None):
    """Starts a program, which is ended at exit, and waits until ready() is true."""
    log = os.path.join(os.environ["work"], name + ".log")
    with open(log, "ab") as f:
        p = subprocess.Popen([name, *args], stdin=subprocess.DEVNULL, stdout=f, stderr=f,
                             cwd=os.environ["work"], env=environment)
    atexit.register(end, p)
    until = time.monotonic() + 20
    while ready and not ready():
        if p.poll() is not None or time.monotonic() > until:
            with open(log, errors="replace") as f:
                sys.stderr.write(f.read()[-4000:])
            sys.stderr.write(f"{name} is not ready\n")
            sys.exit(2)
        time.sleep(0.05)
    return p


def end(p):
    p.terminate()
    try:
        p.wait(5)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()


def answers(port, name="ready.example.", tcp=False):
    """Returns a condition for start: the server at port replies to a query."""
    return lambda: ask(port, name, timeout=0.5, tcp=tcp)[0] is not None


def http_server(address="127.0.0.1", port=0):
    """Starts an HTTP server that answers 204 and closes each connection after that."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            self.send_response(204)
            self.end_headers()

    server = http.server.ThreadingHTTPServer((address, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def backend(address="127.0.0.1"):
    """Starts an HTTP server that answers 204, and returns its port."""
    return http_server(address).server_address[1]


class MovingBackend:
    """A name server at port 53 with one name, whose TTL is a second, and a backend that moves to another address."""

    def __init__(self):
        self.address = "127.0.0.2"
        Upstream(lambda name, qtype, q, tcp: (reply(q, rdata=socket.inet_aton(self.address) if qtype == A else None), 0), port=53)

    def outage(self, *command, **environment):
        """Starts a program that requests the URL in each line of its input and prints whether that succeeds, y or n. Returns for how many
        seconds requests fail after the move; the TTL has passed before the first one."""
        self.address = "127.0.0.2"
        server = http_server(self.address)
        port = server.server_address[1]
        p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
        atexit.register(end, p)

        def succeeds():
            p.stdin.write(f"http://web.shop.svc.cluster.local:{port}/\n")
            p.stdin.flush()
            return p.stdout.readline() == "y\n"

        if not succeeds():
            sys.exit(2)
        server.shutdown()
        server.server_close()
        self.address = "127.0.0.3"
        http_server(self.address, port)
        time.sleep(2)
        begin = time.monotonic()
        while not succeeds():
            if time.monotonic() > begin + 120:
                sys.exit(2)
            time.sleep(0.5)
        end(p)
        return time.monotonic() - begin


def nsd(port, zones, label="nsd"):
    """Returns the command of an NSD that has the zones, lists of statements by name, and its files in the folder label."""
    directory = folder(label)
    return "nsd", "-d", "-c", write(label + ".conf", f"""server:
    ip-address: 127.0.0.1@{port}
    username: ""
    chroot: ""
    zonesdir: "{directory}"
    pidfile: ""
    database: ""
    xfrdfile: "{directory}/xfrd"
    xfrdir: "{directory}"
    zonelistfile: "{directory}/zones"
remote-control:
    control-enable: no
""" + "".join("\n    ".join(["zone:", f"name: {name}", *statements]) + "\n" for name, statements in zones.items()))


def zone_file(path):
    """Returns the statements of nsd for a zone that is in a file."""
    return [f'zonefile: "{path}"']


def forwarding_unbound(label, port, zones, *options, modules="iterator"):
    """Returns the command of an unbound that forwards zones to servers, addresses with ports behind an @ by name."""
    return "unbound", "-d", "-c", write(label + ".conf", f"""server:
    interface: 127.0.0.1@{port}
    do-not-query-localhost: no
    do-daemonize: no
    use-syslog: no
    username: ""
    chroot: ""
    directory: "{folder(label)}"
    pidfile: ""
    module-config: "{modules}"
    {" ".join(options)}
remote-control:
    control-enable: no
""" + "".join(f'forward-zone:\n    name: "{name}"\n    forward-addr: {server}\n' for name, server in zones.items()))


def bind9(label, port, options, statements=""):
    """Returns the command of a BIND with these options and statements. Relative paths are in the folder label."""
    directory = folder(label)
    return "named", "-f", "-c", write(label + ".conf", f"""options {{
    directory "{directory}";
    managed-keys-directory "{directory}";
    pid-file none;
    session-keyfile none;
    listen-on port {port} {{ 127.0.0.1; }};
    listen-on-v6 {{ none; }};
    {options}
}};
controls {{ }};
{statements}
""")


def dnsmasq(port, server, extra=""):
    """Returns the command of a dnsmasq that forwards to the port server."""
    return "dnsmasq", "-k", "-C", write("dnsmasq.conf", f"""port={port}
listen-address=127.0.0.1
bind-interfaces
no-resolv
no-hosts
pid-file=
user=
server=127.0.0.1#{server}
{extra}
""")


def conclude(guess, version, seen, same):
    """Prints the finding, and exits with 1 if the behaviour is no longer the recorded one."""
    print("guess:  ", guess)
    print("version:", version)
    print("seen:   ", seen)
    print("same as recorded" if same else "CHANGED", flush=True)
    sys.exit(0 if same else 1)
