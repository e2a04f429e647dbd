#!/usr/bin/env bash
# ExternalDNS does not delete the IPv6 address of a name from CoreDNS that keeps its IPv4 address.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian etcd-server=3.4.23-4+b4 etcd-client=3.4.23-4+b4
coredns 1.15.0 bind etcd
externaldns 0.23.0
python3 - <<'PYTHON'
from loopback import *

etcd, peers, port = free_port(), free_port(), free_port()
url, peer = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peers}"


def etcdctl(*args):
    return subprocess.run(["etcdctl", "--endpoints", url, *args], capture_output=True, text=True, env=dict(os.environ, ETCDCTL_API="3"))


def sync(*records):
    """Does a round of ExternalDNS, and returns the keys that it has written."""
    before = keys()
    subprocess.run(["external-dns", "coredns"], input="".join(r + "\n" for r in records), stderr=subprocess.DEVNULL, text=True, check=True,
                   env=dict(os.environ, ETCD_URLS=url))
    return keys() - before


def keys():
    return set(etcdctl("get", "--prefix", "/skydns", "--keys-only").stdout.split())


def addresses(name, qtype):
    r, _ = ask(port, name, qtype)
    return r and struct.unpack("!H", r[6:8])[0]


def answered():
    """Returns how many of the names have an A record, and how many an AAAA record."""
    return tuple(sum(addresses(f"dual-{i}.example.", qtype) == 1 for i in range(COUNT)) for qtype in (A, AAAA))


start("etcd", "--data-dir", folder("etcd"), "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer,
      "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer, ready=lambda: etcdctl("endpoint", "health").returncode == 0)
start("coredns", "-conf", write("Corefile", f"""example:{port} {{
    bind 127.0.0.1
    etcd {{
        endpoint {url}
    }}
}}
"""), ready=answers(port))
COUNT = 16
IPV4 = [f"dual-{i}.example A 192.0.2.{i + 1}" for i in range(COUNT)]
IPV6 = [f"dual-{i}.example AAAA 2001:db8::{i + 1}" for i in range(COUNT)]
sync(*IPV4, *IPV6, "single.example A 192.0.2.101 192.0.2.102")
again = len(sync(*IPV4, *IPV6, "single.example A 192.0.2.101 192.0.2.102"))
before = answered()
for _ in range(3):
    sync(*IPV4, "single.example A 192.0.2.101")
after, single = answered(), addresses("single.example.", A)
conclude("when Services with both kinds of addresses lose the IPv6 ones, their AAAA records are deleted, as one of two IPv4 addresses is",
         "ExternalDNS 0.23.0, provider coredns; CoreDNS 1.15.0, etcd; etcd 3.4.23 (Debian 3.4.23-4+b4)",
         f"{before[1]} names have an AAAA record, and {after[1]} still three rounds later; "
         f"all {after[0]} have their A record. A name that loses one of its two IPv4 addresses has {single}. A round without any change replaces {again} keys",
         before == (COUNT, COUNT) and after[0] == COUNT and 0 < after[1] < COUNT and single == 1 and again > 0)
PYTHON
