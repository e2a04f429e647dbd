#!/usr/bin/env bash
# rsyslog sends logs to the address that a name had when the first message was sent.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian rsyslog=8.2302.0-1+deb12u2 libestr0 libfastjson4 liblognorm5 libuuid1 libcurl4 libsystemd0 zlib1g
echo 'nameserver 127.0.0.1' >"$work/resolv.conf"
export RSYSLOG_MODDIR=$work/root/usr/lib/x86_64-linux-gnu/rsyslog/
unshare -rmn bash -c 'mount --bind "$work/resolv.conf" /etc/resolv.conf && ip link set lo up && exec python3 -' <<'PYTHON'
from loopback import *

OLD, NEW, OPTIONS = "127.0.0.2", "127.0.0.3", {"plain": "", "rebinding": 'rebindInterval="5"'}
address = [OLD]
upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=1, rdata=socket.inet_aton(address[0]) if qtype == A else None), 0), port=53)
received = {(a, o): 0 for a in (OLD, NEW) for o in OPTIONS}
ports = dict(zip(OPTIONS, (5140, 5141)))


def collect(a, option):
    """Counts the messages that reach an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind((a, ports[option]))
        while True:
            s.recv(2000)
            received[a, option] += 1


for key in received:
    threading.Thread(target=collect, args=key, daemon=True).start()
actions = "\n".join(f'action(type="omfwd" target="logs.example" port="{ports[o]}" protocol="udp" {text})' for o, text in OPTIONS.items())
start("rsyslogd", "-n", "-i", folder("rsyslog") + "/pid", "-f", write("rsyslog.conf", f"""global(workDirectory="{folder("rsyslog")}")
module(load="imudp")
input(type="imudp" address="127.0.0.1" port="1514")
{actions}
"""))


def log(done):
    """Sends a message a second, 30 at most, until done. Returns how many it took."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for n in range(1, 31):
            s.sendto(b"<13>app: hello", ("127.0.0.1", 1514))
            time.sleep(1)
            if done():
                return n
    return None


if not log(lambda: all(received[OLD, o] for o in OPTIONS)):
    sys.exit(2)
address[0] = NEW
time.sleep(3)
sent = log(lambda: received[NEW, "plain"])
conclude("when a name with a TTL of one second gets another address, messages over UDP go there",
         "rsyslog 8.2302.0 (Debian 8.2302.0-1+deb12u2), omfwd over UDP",
         f"{received[NEW, 'plain']} of the next {sent or 30} messages, sent in 30 s, reach the new address, and the name is not looked up again; "
         f"{received[NEW, 'rebinding']} with rebindInterval=\"5\"",
         sent is None and received[NEW, "rebinding"] > 15)
PYTHON
