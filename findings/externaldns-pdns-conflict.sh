#!/usr/bin/env bash
# ExternalDNS never replaces an address by a host name in PowerDNS, and no longer adds names to the zone.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian pdns-server=4.7.3-2 pdns-backend-sqlite3=4.7.3-2 libboost-program-options1.74.0 libcurl4 libluajit-5.1-2 libp11-kit0 libsodium23 libsqlite3-0 librtmp1 libssh2-1 libpsl5 libldap-2.5-0 libsasl2-2 libbrotli1 libnghttp2-14
externaldns 0.23.0
python3 - <<'PYTHON'
import glob
import json
import sqlite3
import urllib.request
from loopback import *

work, port, api, directory = os.environ["work"], free_port(), free_port(), folder("pdns")
with sqlite3.connect(directory + "/db") as db:
    with open(glob.glob(work + "/root/usr/share/**/schema.sqlite3.sql", recursive=True)[0]) as f:
        db.executescript(f.read())
    db.execute("insert into domains (name, type) values ('shop.example', 'NATIVE')")
    db.execute("insert into records (domain_id, name, type, content, ttl) values (1, 'shop.example', 'SOA', 'ns.example host.example 1 3600 600 86400 60', 300)")
write("pdns/pdns.conf", f"""module-dir={work}/root/usr/lib/x86_64-linux-gnu/pdns
launch=gsqlite3
gsqlite3-database={directory}/db
local-address=127.0.0.1
local-port={port}
socket-dir={directory}
webserver=yes
webserver-port={api}
api=yes
api-key=key
query-cache-ttl=0
negquery-cache-ttl=0
cache-ttl=0
guardian=no
daemon=no
disable-syslog=yes
write-pid=no
security-poll-suffix=
""")
start("pdns_server", "--config-dir=" + directory, ready=answers(port, "shop.example."))


def synced(*records):
    """Does one round of ExternalDNS for these records. Returns whether it succeeds, and what it prints."""
    p = subprocess.run(["external-dns", "pdns", f"http://127.0.0.1:{api}", "key"], input="\n".join(records), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return p.returncode == 0, p.stdout


def types():
    """Returns the type of each name's record, None for names without one."""
    found = {}
    for name in ("web", "new", "old"):
        r, _ = ask(port, name + ".shop.example.")
        found[name] = struct.unpack("!H", r[question(r)[2] :][2:4])[0] if r[7] else None
    return found


def known(records):
    return ", ".join(f"{n}: {({A: 'A', CNAME: 'CNAME', None: 'nothing'})[t]}" for n, t in records.items())


CNAME, NEW = 5, "new.shop.example A 192.0.2.3"
first, _ = synced("web.shop.example A 192.0.2.1", "old.shop.example A 192.0.2.2")
if not first or types() != {"web": A, "new": None, "old": A}:
    sys.exit(2)
rounds = [synced("web.shop.example CNAME lb.cloud.example", NEW) for _ in range(3)]
after = types()
delete = json.dumps({"rrsets": [{"name": "web.shop.example.", "type": "A", "changetype": "DELETE"}]}).encode()
urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{api}/api/v1/servers/localhost/zones/shop.example.", delete, {"X-API-Key": "key", "Content-Type": "application/json"}, method="PATCH")).close()
last, _ = synced("web.shop.example CNAME lb.cloud.example", NEW)
cured = types()
message = [l for l in rounds[0][1].splitlines() if "Conflicts" in l]
conclude("when a load balancer's address becomes a host name, the A record is replaced by the CNAME record, in this round or in the next one, and other names are added and deleted meanwhile",
         "ExternalDNS 0.23.0, provider pdns; PowerDNS Authoritative Server 4.7.3 (Debian 4.7.3-2)",
         f"{sum(ok for ok, _ in rounds)} of 3 rounds succeed ({message[0] if message else ''}), and after them the records are {known(after)}, where new has been added and old deleted in the cluster. "
         f"When an administrator deletes the A record, the next round succeeds: {last}, with {known(cured)}",
         not any(ok for ok, _ in rounds) and message and after == {"web": A, "new": None, "old": A} and last and cured == {"web": CNAME, "new": A, "old": None})
PYTHON
