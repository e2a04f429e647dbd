#!/usr/bin/env bash
# Knot DNS does not answer its own zones while the server that it passes other names to is silent.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian knot=3.2.6-1 libknot13=3.2.6-1 libdnssec9=3.2.6-1 libzscanner4=3.2.6-1 libbpf1 libcap-ng0 libedit2 libelf1 libxdp1 libbsd0 libgnutls30 liblmdb0 liburcu8
python3 - <<'PYTHON'
from loopback import *

silent = threading.Event()
other = Upstream(lambda name, qtype, q, tcp: (None if silent.is_set() else reply(q), 0))
zone = write("zone", """$ORIGIN shop.example.
$TTL 5
@ SOA ns a 1 2 2 86400 5
@ NS ns
ns A 192.0.2.200
web A 192.0.2.1
""")


def knot(label, timeout, workers):
    silent.clear()
    port, directory = free_port(), folder(label)
    conf = write(label + ".conf", f"""server:
    rundir: {directory}
    listen: 127.0.0.1@{port}
    udp-workers: {workers}
database:
    storage: {directory}
remote:
  - id: other
    address: 127.0.0.1@{other.port}
mod-dnsproxy:
  - id: default
    remote: other
    timeout: {timeout}
    fallback: on
template:
  - id: default
    storage: {directory}
    global-module: mod-dnsproxy/default
zone:
  - domain: shop.example.
    file: {zone}
""")
    start("knotd", "-c", conf, ready=answers(port, "web.shop.example."))
    if rcode(ask(port, "name.other.example.")[0]) != NOERROR:
        sys.exit(2)
    return port


def own(port):
    """Returns how many of 20 queries for a name of Knot's own zone are answered within 2 s."""
    return [rcode(ask(port, "web.shop.example.", timeout=2)[0]) for _ in range(20)].count(NOERROR)


def clients(port, stop):
    """Asks for 40 names a second that are passed on, each from another port, as a worker gets all of a port's queries."""
    i = 0
    while not stop.is_set():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.sendto(query(f"n{i}.other.example."), ("127.0.0.1", port))
        i += 1
        time.sleep(0.025)


def while_silent(port):
    stop = threading.Event()
    t = threading.Thread(target=clients, args=(port, stop))
    t.start()
    time.sleep(1)
    before = own(port)
    silent.set()
    time.sleep(3)
    after = own(port)
    stop.set()
    t.join()
    return before, after


two, many = while_silent(knot("two", 500, 2)), while_silent(knot("many", 100, 16))
conclude("names of Knot's own zone are answered as ever while the server for other names is silent",
         "Knot DNS 3.2.6 (Debian 3.2.6-1), mod-dnsproxy with fallback",
         f"at 40 queries a second for other names, 2 workers answer {two[0]} of 20 queries for their own zone within 2 s while the server answers, "
         f"and {two[1]} while it is silent; 16 workers with a timeout of 100 ms answer {many[0]} and {many[1]}",
         two[0] == 20 and two[1] <= 4 and many == (20, 20))
PYTHON
