#!/usr/bin/env bash
# PgBouncer forgets a known address when a look-up gets SERVFAIL, and fails for a while after the end of the outage.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian pgbouncer=1.18.0-1+deb12u1 libc-ares2 libevent-2.1-7 libssl3 libpam0g libsystemd0
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

failing = False
dns = Upstream(lambda name, qtype, q, tcp: (reply(q, SERVFAIL) if failing else reply(q, ttl=30, rdata=bytes([127, 0, 0, 1]) if qtype == A else None), 0), port=53)


def packet(kind, body=b""):
    return kind + struct.pack("!L", len(body) + 4) + body


def packets(s):
    """Yields the kinds of the packets received, with their bodies."""
    with s.makefile("rb") as f:
        while head := f.read(5):
            yield head[:1], f.read(struct.unpack("!L", head[1:])[0] - 4)


READY = packet(b"Z", b"I")
PARAMETERS = {"server_version": "15.0", "client_encoding": "UTF8", "DateStyle": "ISO", "TimeZone": "UTC", "standard_conforming_strings": "on"}


def backend(s):
    """Answers each query like PostgreSQL, with no row."""
    try:
        with s:
            s.recv(struct.unpack("!L", s.recv(4))[0] - 4)
            s.sendall(packet(b"R", bytes(4)) + b"".join(packet(b"S", f"{k}\0{v}\0".encode()) for k, v in PARAMETERS.items()) + packet(b"K", bytes(8)) + READY)
            for kind, _ in packets(s):
                if kind == b"Q":
                    s.sendall(packet(b"C", b"SELECT 0\0") + READY)
    except OSError:
        pass


def accept(server):
    while True:
        connection, _ = server.accept()
        threading.Thread(target=backend, args=(connection,), daemon=True).start()


def succeeds(port):
    """Returns whether a client that connects gets an answer to a query within 5 s."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as s:
            s.settimeout(5)
            s.sendall(packet(b"", struct.pack("!L", 196608) + b"user\0app\0database\0shop\0\0"))
            for kind, _ in packets(s):
                if kind == b"Z":
                    s.sendall(packet(b"Q", b"select\0"))
                elif kind in b"CE":
                    return kind == b"C"
    except OSError:
        pass
    return False


def outage(options):
    """Returns for how long clients fail after an outage of the name server of 3 s."""
    global failing
    port = free_port()
    conf = write("pgbouncer.ini", f"""[databases]
shop = host=db.shop.svc.cluster.local port={database.getsockname()[1]} user=app
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
unix_socket_dir =
server_lifetime = 1
{options}
""")
    pgbouncer = start("unshare", "--map-user=1000", "pgbouncer", conf, ready=lambda: succeeds(port))
    # Asks until shortly before the address is 15 s old, so that the outage is when it is looked up again.
    until = time.monotonic() + 14
    while time.monotonic() < until:
        if not succeeds(port):
            sys.exit(2)
        time.sleep(0.5)
    before, failing = len(dns.queries), True
    while len(dns.queries) == before:
        threading.Thread(target=succeeds, args=(port,), daemon=True).start()
        if time.monotonic() > until + 10:
            sys.exit(2)
        time.sleep(0.5)
    time.sleep(3)
    failing, begin = False, time.monotonic()
    while not succeeds(port):
        if time.monotonic() > begin + 60:
            sys.exit(2)
        time.sleep(0.2)
    end(pgbouncer)
    return time.monotonic() - begin


database = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=accept, args=(database,), daemon=True).start()
plain, cured = outage(""), outage("dns_nxdomain_ttl = 1\nserver_login_retry = 1")
conclude("if a name that has been looked up gets SERVFAIL later, its address is used further, or the name works as soon as the name server does",
         "PgBouncer 1.18.0 (Debian 1.18.0-1+deb12u1)",
         f"when the name server answers SERVFAIL for 3 s, clients that need a new connection fail for {plain:.0f} s more; "
         f"{cured:.1f} s with dns_nxdomain_ttl and server_login_retry of 1 s",
         plain > 8 and cured < 4)
PYTHON
