#!/usr/bin/env bash
# A name that ExternalDNS writes for CoreDNS also has the addresses of all names below it.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian etcd-server=3.4.23-4+b4 etcd-client=3.4.23-4+b4
coredns 1.15.0 bind etcd
externaldns 0.23.0
python3 - <<'PYTHON'
from loopback import *

etcd, peers, port = free_port(), free_port(), free_port()
url, peer = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peers}"


def healthy():
    return subprocess.run(["etcdctl", "--endpoints", url, "endpoint", "health"], capture_output=True, env=dict(os.environ, ETCDCTL_API="3")).returncode == 0


def sync(*records):
    """Does a round of ExternalDNS."""
    subprocess.run(["external-dns", "coredns"], input="".join(r + "\n" for r in records), stderr=subprocess.DEVNULL, text=True, check=True, env=dict(os.environ, ETCD_URLS=url))


def addresses(name):
    """Returns the addresses of a name of type A."""
    r, _ = ask(port, name + ".example.")
    at, found = question(r)[2], []
    for _ in range(struct.unpack("!H", r[6:8])[0]):
        while r[at] and r[at] < 0xC0:
            at += 1 + r[at]
        at += 2 if r[at] else 1
        kind, _, _, size = struct.unpack("!2HLH", r[at : at + 10])
        if kind == A:
            found.append(socket.inet_ntoa(r[at + 10 : at + 10 + size]))
        at += 10 + size
    return sorted(found)


start("etcd", "--data-dir", folder("etcd"), "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer,
      "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer, ready=healthy)
start("coredns", "-conf", write("Corefile", f"""example:{port} {{
    bind 127.0.0.1
    etcd {{
        endpoint {url}
    }}
}}
"""), ready=answers(port))
SHOP, DB, ADMIN = "shop.example A 192.0.2.1", "db.shop.example A 192.0.2.2", "admin.prod.example A 192.0.2.3"
sync(SHOP)
alone = addresses("shop")
sync(SHOP, DB, ADMIN)
shop, below, prod = addresses("shop"), addresses("db.shop"), addresses("prod")
sync(SHOP, ADMIN)
deleted = addresses("shop")
conclude("shop.example has its own address, whatever names there are below it, and prod.example, below which there is admin.prod.example, has none",
         "ExternalDNS 0.23.0, provider coredns; CoreDNS 1.15.0, etcd; etcd 3.4.23 (Debian 3.4.23-4+b4)",
         f"shop.example, with 192.0.2.1 in the cluster, has {', '.join(alone)}, and {', '.join(shop)} while there is db.shop.example, whose address is {', '.join(below)}, "
         f"and {', '.join(deleted)} after that is deleted; prod.example has {', '.join(prod) or 'none'}, the address of admin.prod.example",
         alone == deleted == ["192.0.2.1"] and shop == ["192.0.2.1", "192.0.2.2"] and below == ["192.0.2.2"] and prod == ["192.0.2.3"])
PYTHON
