#!/usr/bin/env bash
# YADIFA, as a secondary, denies the names that a DNAME record redirects.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 libmaxminddb0 libnghttp2-14 libssl3 libuv1 libxml2 libicu72
debian yadifa=2.6.4-1 nsd=4.6.1-1 libevent-2.1-7 libfstrm0 libprotobuf-c1
python3 - <<'PYTHON'
from loopback import *

ZONE, DNAME = "shop.example", 39
primary, yadifa, second = free_port(), free_port(), free_port()
folder("named"), folder("zones"), folder("transfers")
zone = write("named/zone", """$TTL 300
@ SOA ns.example. host.example. 1 3600 600 86400 60
@ NS ns.example.
old DNAME new
www.new A 192.0.2.1
""")


def known(port):
    return lambda: rcode(ask(port, f"www.new.{ZONE}.", timeout=1)[0]) == NOERROR


def answer(port, name, qtype=A):
    """Returns the rcode, and the number of records in the answer."""
    r, _ = ask(port, f"{name}.{ZONE}.", qtype)
    return RCODES.get(rcode(r)), struct.unpack("!H", r[6:8])[0]


start(*bind9("named", primary, "recursion no; notify no; allow-transfer { 127.0.0.1; };", f'zone {ZONE} {{ type primary; file "{zone}"; }};'), ready=known(primary))
work = os.environ["work"]
start(*nsd(second, {ZONE: [f"request-xfr: 127.0.0.1@{primary} NOKEY"]}), ready=known(second))
conf = write("yadifad.conf", f"""<main>
  daemon off
  datapath "{work}/zones"
  xfrpath "{work}/transfers"
  keyspath "{work}"
  logpath "{work}"
  pidfile "{work}/yadifad.pid"
  listen 127.0.0.1 port {yadifa}
  uid 0
  gid 0
</main>
<channels>
  stdout STDOUT
</channels>
<loggers>
  server err,warning,info stdout
</loggers>
<zone>
  type secondary
  domain {ZONE}
  primaries "127.0.0.1 port {primary}"
  file "{ZONE}"
</zone>
""")
# Some starts end without a transfer, so it is started again until it has the zone.
for _ in range(8):
    p = start("yadifad", "-c", conf, ready=lambda: ask(yadifa, f"www.new.{ZONE}.", timeout=1)[0])
    until = time.monotonic() + 10
    while not known(yadifa)() and time.monotonic() < until:
        time.sleep(0.5)
    if known(yadifa)():
        break
    end(p)
else:
    sys.exit(2)
names = {label: answer(port, "www.old") for label, port in (("BIND", primary), ("NSD", second), ("YADIFA", yadifa))}
record = answer(yadifa, "old", DNAME)
conclude("a secondary answers names below a DNAME record with that record and an alias (RFC 6672, 3.2), as its primary does",
         "YADIFA 2.6.4 (Debian 2.6.4-1); BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) as the primary, NSD 4.6.1 (Debian 4.6.1-1) as another secondary",
         "; ".join(f"{label}: {code} with {count} records" for label, (code, count) in names.items()) + f". YADIFA has the DNAME record itself: {record[1] == 1}",
         names["YADIFA"] == ("NXDOMAIN", 0) and names["BIND"][0] == names["NSD"][0] == "NOERROR" and names["NSD"][1] == 3 and record == ("NOERROR", 1))
PYTHON
