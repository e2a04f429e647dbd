#!/usr/bin/env bash
# BIND drops the answers that dnsmasq has for two clients with the same question, as one gets the other's cookie.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 dnsmasq-base=2.90-4~deb12u2 libcap2 libfstrm0 libgssapi-krb5-2 libidn2-0 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnetfilter-conntrack3 libnfnetlink0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
python3 - <<'PYTHON'
from concurrent.futures import ThreadPoolExecutor
from loopback import *

COUNT = 20


def named(label, forwarder, extra=""):
    """Starts a BIND that forwards everything, and returns its port."""
    port = free_port()
    start(*bind9(label, port, f"dnssec-validation no; forward only; forwarders port {forwarder} {{ 127.0.0.1; }};", extra), "-n", "1", ready=answers(port))
    return port


def slowest(label, extra=""):
    """Asks two BINDs behind dnsmasq for the same new names. Returns the median of the seconds until both have answered."""
    clients, waits = [named(label + str(i), dnsmasq_port, extra) for i in (1, 2)], []
    with ThreadPoolExecutor() as pool:
        for i in range(COUNT):
            replies = list(pool.map(lambda port: ask(port, f"{label}-{i}.corp.example.", timeout=8), clients))
            if any(rcode(r) != NOERROR for r, _ in replies):
                sys.exit(2)
            waits.append(max(seconds for _, seconds in replies))
    return sorted(waits)[COUNT // 2]


server = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=30), 0.2))
resolver, dnsmasq_port = named("resolver", server.port), free_port()
start(*dnsmasq(dnsmasq_port, resolver), ready=answers(dnsmasq_port))
default, cured = slowest("default"), slowest("cured", "server 127.0.0.1 { send-cookie no; };")
conclude("two BINDs that ask dnsmasq for the same name at the same time have its answer as soon as there is one, after 0.2 s",
         "dnsmasq 2.90 (Debian 2.90-4~deb12u2); BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) on both sides of it",
         f"one has it only after {default:.1f} s, as dnsmasq sends one query, and both answers have the cookie of the first client; with send-cookie no both have it after {cured:.1f} s",
         default > 0.9 and cured < 0.6)
PYTHON
