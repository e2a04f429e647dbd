#!/usr/bin/env bash
# CoreDNS never returns to a restarted tinydns, which is silent on names of foreign zones. Needs root.
[ "$(id -u)" = 0 ] || { echo "tinydns only starts as root" >&2; exit 2; }
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian tinydns=1:1.05-15+b2
coredns 1.15.0 bind forward
unshare -n python3 - <<'PYTHON'
from loopback import *

# tinydns has port 53 only, and so runs in a network namespace of its own.
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
FRONT = ("127.0.0.3", 1053)


def ask_at(server, name):
    """Returns the RCODE of the reply, or None."""
    q = query(name)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5)
        s.connect(server)
        try:
            s.send(q)
            return rcode(s.recv(4096))
        except OSError:
            return None


def tinydns(address):
    root = folder("tinydns-" + address)
    with open(root + "/data", "w") as f:
        f.write(".example:192.0.2.53:ns:3600\n+*.example:192.0.2.1:5\n")
    subprocess.run(["tinydns-data"], cwd=root, check=True)
    return start("tinydns", ready=lambda: ask_at((address, 53), "ready.example.") == NOERROR,
                 environment=dict(os.environ, IP=address, ROOT=root, UID="0", GID="0"))


def asked(n):
    """Asks CoreDNS for n names, one after the other. Returns how many are answered."""
    answered = 0
    for i in range(n):
        answered += ask_at(FRONT, f"n{i}.example.") == NOERROR
        time.sleep(0.02)
    return answered


def restarted(extra):
    """Restarts the second of two servers, and ends the first 10 s later. Returns how many of 100
    names are answered then."""
    conf = write("Corefile", f""".:{FRONT[1]} {{
    bind {FRONT[0]}
    forward . 127.0.0.1 127.0.0.2 {{
        policy round_robin
        {extra}
    }}
}}
""")
    first, second = tinydns("127.0.0.1"), tinydns("127.0.0.2")
    front = start("coredns", "-conf", conf, ready=lambda: ask_at(FRONT, "ready.example.") == NOERROR)
    end(second)
    asked(100)
    second = tinydns("127.0.0.2")
    time.sleep(10)
    end(first)
    answered = asked(100)
    for p in (front, second):
        end(p)
    return answered


default, own = restarted(""), restarted("health_check 0.5s domain ready.example.")
conclude("a server that has answered directly for 10 s since its restart takes over when the other one ends",
         "CoreDNS 1.15.0 forwarding to two tinydns (Debian 1:1.05-15+b2)",
         f"{default} of 100 names are answered, as the health check asks for the root zone, on which tinydns is silent; "
         f"{own} with health_check 0.5s domain and a name of its zone",
         default < 80 and own > 95)
PYTHON
