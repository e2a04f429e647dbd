#!/usr/bin/env bash
# aardvark-dns, Podman's name server, denies a container's name that is asked for with capital letters.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian aardvark-dns=1.4.0-3
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libnghttp2-14 libprotobuf-c1 libpython3.11 libexpat1 libssl3
export PATH=$work/root/usr/lib/podman:$PATH
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
import signal
from loopback import *

PORT = 5353


def code(name):
    return rcode(ask(PORT, name, address="127.0.0.2", timeout=1)[0])


directory = folder("networks")
# What Podman writes: the bridge's address, then for each container its ID, addresses and names.
write("networks/podman1", "127.0.0.2\n1d1d 10.89.0.2  web,1d1d\n2e2e 10.89.0.3  Shop-db,2e2e\n")
# It goes to the background.
subprocess.run(["aardvark-dns", "--config", directory, "--port", str(PORT), "run"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
with open(directory + "/aardvark.pid") as f:
    atexit.register(os.kill, int(f.read()), signal.SIGTERM)
until = time.monotonic() + 20
while code("web.") is None:
    if time.monotonic() > until:
        sys.exit(2)


def unbound(label, *options):
    """Starts an unbound that forwards to aardvark-dns, and returns its port."""
    port = free_port()
    start(*forwarding_unbound(label, port, {".": f"127.0.0.2@{PORT}"}, *options), ready=answers(port, "web."))
    return port


names = {n: RCODES.get(code(n + ".")) for n in ("web", "Web", "WEB", "Shop-db", "shop-db")}
plain, mixed = unbound("plain"), unbound("mixed", "use-caps-for-id: yes")
behind = {label: RCODES.get(rcode(ask(port, "shop-db.", timeout=8)[0])) for label, port in (("without", plain), ("with", mixed))}
conclude("a container is found by its name however it is written (RFC 4343), at least as it was written for `podman run --name Shop-db`",
         "aardvark-dns 1.4.0 (Debian 1.4.0-3); unbound 1.17.1 (Debian 1.17.1-2+deb12u4)",
         "; ".join(f"{n}: {c}" for n, c in names.items()) + "; shop-db behind unbound " + ", ".join(f"{label} use-caps-for-id: {c}" for label, c in behind.items()),
         names == {"web": "NOERROR", "Web": "NXDOMAIN", "WEB": "NXDOMAIN", "Shop-db": "NXDOMAIN", "shop-db": "NOERROR"} and behind["without"] == "NOERROR")
PYTHON
