#!/usr/bin/env bash
# Kamailio drops requests to a name for a minute if one look-up of it gets SERVFAIL.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian kamailio=5.6.3-2 libpcre3 libreadline8
look_ups $'nameserver 127.0.0.1\noptions timeout:1 attempts:1' <<'PYTHON'
from loopback import *

failing = False
Upstream(lambda name, qtype, q, tcp: (reply(q, SERVFAIL if failing else NOERROR, rdata=socket.inet_aton("127.0.0.2") if qtype == A else None), 0), port=53)
backend = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
backend.bind(("127.0.0.2", 5080))
backend.settimeout(1)
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.bind(("127.0.0.1", 0))
port, requests = free_port(), 0


def forwarded():
    """Sends a SIP request to Kamailio, and returns whether the backend gets it."""
    global requests
    requests += 1
    client.sendto(f"""MESSAGE sip:bob@example.org SIP/2.0
Via: SIP/2.0/UDP 127.0.0.1:{client.getsockname()[1]};branch=z9hG4bK{requests}
Max-Forwards: 70
From: <sip:alice@example.org>;tag=1
To: <sip:bob@example.org>
Call-ID: {requests}@example.org
CSeq: 1 MESSAGE
Content-Length: 0

""".replace("\n", "\r\n").encode(), ("127.0.0.1", port))
    try:
        while f"Call-ID: {requests}@" not in backend.recv(4096).decode():
            pass
        return True
    except TimeoutError:
        return False


def outage(setting):
    """Returns for how long requests are dropped after one has met a SERVFAIL."""
    global failing
    modules = os.path.dirname(subprocess.check_output(["find", os.environ["work"] + "/root", "-name", "pv.so"], text=True).strip())
    conf = write("kamailio.cfg", f"""log_stderror=yes
children=1
listen=udp:127.0.0.1:{port}
{setting}
mpath="{modules}/"
loadmodule "pv.so"
request_route {{
	$du = "sip:web.shop.svc.cluster.local:5080";
	forward();
}}
""")
    directory = folder("run")
    kamailio = start("kamailio", "-f", conf, "-DD", "-E", "-w", directory, "-Y", directory, "-m", "16", "-M", "8", ready=forwarded)
    # The TTL is a second.
    time.sleep(2)
    failing = True
    if forwarded():
        sys.exit(2)
    failing, begin = False, time.monotonic()
    while not forwarded():
        if time.monotonic() > begin + 150:
            sys.exit(2)
    end(kamailio)
    return time.monotonic() - begin


plain, cured = outage(""), outage("dns_cache_negative_ttl=0")
conclude("when a look-up gets SERVFAIL, requests go on to the known address, or the next request takes another look-up",
         "Kamailio 5.6.3 (Debian 5.6.3-2)",
         f"after one SERVFAIL requests are dropped for {plain:.0f} s, as it is kept like a name that does not exist; for {cured:.1f} s with dns_cache_negative_ttl=0",
         plain > 40 and cured < 3)
PYTHON
