#!/usr/bin/env bash
# A Redis replica that has lost its primary answers nobody while it waits for the name server.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian redis-server=5:7.0.15-1~deb12u10 redis-tools=5:7.0.15-1~deb12u10 liblzf1 libjemalloc2 liblua5.1-0 lua-cjson lua-bitop libatomic1 libssl3
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

silent = False
dns = Upstream(lambda name, qtype, q, tcp: (None if silent else reply(q, rdata=bytes([127, 0, 0, 1]) if qtype == A else None), 0), port=53)


def command(port, *words, timeout=60):
    """Returns the reply to a command, and None without one."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as s:
            s.settimeout(timeout)
            s.sendall(f"*{len(words)}\r\n".encode() + b"".join(f"${len(w)}\r\n{w}\r\n".encode() for w in words))
            return s.recv(65535)
    except OSError:
        return None


def redis(name, *options):
    port = free_port()
    return start("redis-server", "--port", str(port), "--dir", folder(name), "--save", "", *options,
                 ready=lambda: command(port, "PING", timeout=1)), port


def slowest(options):
    """Returns how long the slowest of the GETs took in 30 s without the primary, and how many of the seconds were spent waiting."""
    global silent
    silent = False
    write("resolv.conf", "nameserver 127.0.0.1\n" + options)
    primary, primary_port = redis("primary")
    replica, port = redis("replica", "--replicaof", f"primary.shop.svc.cluster.local {primary_port}")
    command(primary_port, "SET", "key", "value")
    until = time.monotonic() + 20
    while command(port, "GET", "key") != b"$5\r\nvalue\r\n" or b"master_link_status:up" not in command(port, "INFO", "replication"):
        if time.monotonic() > until:
            sys.exit(2)
        time.sleep(0.2)
    silent = True
    end(primary)
    begin, times = time.monotonic(), []
    while time.monotonic() < begin + 30:
        sent = time.monotonic()
        if command(port, "GET", "key") != b"$5\r\nvalue\r\n":
            sys.exit(2)
        times.append(time.monotonic() - sent)
        time.sleep(0.05)
    end(replica)
    return max(times), sum(t for t in times if t > 0.5)


longest, waiting = slowest("")
short, _ = slowest("options timeout:1 attempts:1\n")
conclude("while its primary is gone and the name server is silent, a replica answers its clients as before",
         "Redis 7.0.15 (Debian 5:7.0.15-1~deb12u10), replicaof with a host name, glibc",
         f"a GET takes up to {longest:.0f} s, and {waiting:.0f} of about 30 s are spent waiting; with timeout:1 attempts:1 in resolv.conf, it takes up to {short:.0f} s",
         longest > 8 and waiting > 20 and short < 4)
PYTHON
