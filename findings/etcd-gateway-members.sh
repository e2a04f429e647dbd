#!/usr/bin/env bash
# An etcd gateway keeps the members that DNS named when it started.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian etcd-server=3.4.23-4+b4
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

ADDRESS, MOVED = {"a": "127.0.0.2", "b": "127.0.0.3"}, "127.0.0.4"
member, reached, port = "a", [], free_port()


def wire(name):
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def handle(name, qtype, q, tcp):
    """Answers for _etcd-client._tcp.shop.example and its one member."""
    if qtype == SRV and name == "_etcd-client._tcp.shop.example.":
        return reply(q, rdata=struct.pack("!3H", 10, 10, port) + wire(member + ".shop.example")), 0
    if name[:2] in ("a.", "b."):
        return reply(q, rdata=socket.inet_aton(ADDRESS[name[0]]) if qtype == A else None), 0
    return reply(q, NXDOMAIN), 0


class Member:
    """Takes connections at an address, and notes them."""

    def __init__(self, address):
        self.address, self.listener = address, socket.create_server((address, port))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            c, _ = self.listener.accept()
            reached.append(self.address)
            c.sendall(b"x")
            c.close()


def gateway():
    listen = free_port()
    start("etcd", "gateway", "start", "--discovery-srv", "shop.example", "--insecure-discovery", "--retry-delay", "1s", "--listen-addr",
          f"127.0.0.1:{listen}", ready=lambda: end_of(listen))
    return listen


def end_of(listen):
    """Returns the address at which a connection through the gateway ends, or None."""
    reached.clear()
    try:
        with socket.create_connection(("127.0.0.1", listen), 5) as s:
            s.settimeout(5)
            s.recv(1)
    except OSError:
        pass
    return reached[-1] if reached else None


def connections(listen):
    """Returns where ten connections through the gateway end, a second apart."""
    ends = []
    for _ in range(10):
        ends.append(end_of(listen))
        time.sleep(1)
    return ends


dns = Upstream(handle, port=53)
old, moved, new = Member(ADDRESS["a"]), Member(MOVED), Member(ADDRESS["b"])
listen = gateway()
asked = [name for _, name, _, _ in dns.queries].count("_etcd-client._tcp.shop.example.")
ADDRESS["a"] = MOVED
time.sleep(2)
control = set(connections(listen))
member = "b"
time.sleep(2)
ends = connections(listen)
again = [name for _, name, _, _ in dns.queries].count("_etcd-client._tcp.shop.example.") - asked
restarted = set(connections(gateway()))
conclude("when the SRV record names another member, new connections through the gateway go there soon after its TTL of one second",
         "etcd 3.4.23 (Debian 3.4.23-4+b4), etcd gateway --discovery-srv",
         f"{ends.count(MOVED)} of 10 connections go to the former member, and the SRV record is asked for {again} more times; if the name of a member "
         f"gets another address, they go to {'the new' if control == {MOVED} else 'the old'} one; after a restart, they go to {'the new member' if restarted == {ADDRESS['b']} else restarted}",
         ends == [MOVED] * 10 and again == 0 and control == {MOVED} and restarted == {ADDRESS["b"]})
PYTHON
