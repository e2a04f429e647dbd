#!/usr/bin/env bash
# A new NSD secondary takes most of a minute to get 300 small zones from BIND.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nsd=4.6.1-1 libevent-2.1-7 libfstrm0 libprotobuf-c1 libssl3
debian knot=3.2.6-1 libknot13 libdnssec9 libzscanner4 liburcu8 libbpf1 libxdp1 libcap-ng0 libelf1 libedit2 libgnutls30 liblmdb0
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 libmaxminddb0 libnghttp2-14 libuv1 libxml2 libicu72
python3 - <<'PYTHON'
from loopback import *

ZONES = [f"zone-{i}.example" for i in range(300)]
zone = write("zone", "$TTL 300\n@ SOA ns.example. host.example. 1 3600 600 86400 60\n@ NS ns.example.\nwww A 192.0.2.1\n")


def named():
    """Starts a BIND that has the zones, and returns its port."""
    port = free_port()
    start(*bind9("named", port, "recursion no; notify no; allow-transfer { 127.0.0.1; };", "".join(f'zone {z} {{ type primary; file "{zone}"; }};\n' for z in ZONES)), "-g", ready=lambda: known(port) == len(ZONES))
    return port


def known(port):
    return sum(rcode(ask(port, f"www.{z}.", timeout=1)[0]) == NOERROR for z in ZONES)


def refused():
    with open(os.environ["work"] + "/named.log") as f:
        return f.read().count("quota")


def nsd_secondary(label, primary):
    port = free_port()
    return port, *nsd(port, {z: [f"request-xfr: 127.0.0.1@{primary} NOKEY"] for z in ZONES}, label)


def knot(label, primary):
    port, directory = free_port(), folder(label)
    return port, "knotd", "-c", write(label + ".conf", f"""server:
  rundir: {directory}
  listen: 127.0.0.1@{port}
database:
  storage: {directory}
remote:
  - id: primary
    address: 127.0.0.1@{primary}
template:
  - id: default
    storage: {directory}
    master: primary
zone:
""" + "".join(f"  - domain: {z}\n" for z in ZONES))


def progress(port, *command):
    """Starts a secondary. Returns how many zones it has after 12 s, and after how many seconds it has all, two minutes at most."""
    begin = time.monotonic()
    p = start(*command, ready=answers(port))
    time.sleep(max(0, begin + 12 - time.monotonic()))
    early = known(port)
    while known(port) < len(ZONES) and time.monotonic() - begin < 120:
        time.sleep(1)
    end(p)
    return early, time.monotonic() - begin


primary = named()
quick, refused_knot = progress(*knot("knot", primary)), refused()
slow, refused_nsd = progress(*nsd_secondary("nsd", primary)), refused() - refused_knot
conclude(f"a new secondary has its {len(ZONES)} small zones within 12 s, whichever server it is",
         "NSD 4.6.1 (Debian 4.6.1-1); BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) as the primary, Knot DNS 3.2.6 (Debian 3.2.6-1) for comparison",
         f"NSD has {slow[0]} of {len(ZONES)} zones after 12 s, and SERVFAIL for the others, and all after {slow[1]:.0f} s, as BIND refuses {refused_nsd} transfers for its quota of 10 at a time; "
         f"Knot has {quick[0]} after 12 s, with {refused_knot} refused",
         slow[0] < 200 and slow[1] > 20 and refused_nsd > 50 and quick[0] == len(ZONES))
PYTHON
