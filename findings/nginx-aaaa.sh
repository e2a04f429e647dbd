#!/usr/bin/env bash
# nginx fails a request if the AAAA query of its backend fails, although it has the A record.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nginx=1.22.1-9+deb12u11 libpcre2-8-0 libssl3 zlib1g libcrypt1
python3 - <<'PYTHON'
from nginx import backend, statuses
from loopback import *

service = backend()


def requests(aaaa, extra=""):
    """Returns the statuses of 10 requests when A queries are answered and AAAA queries get that RCODE."""
    address = bytes([127, 0, 0, 1])
    upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, rdata=address) if qtype == A else reply(q, aaaa), 0))
    return statuses([upstream], service, extra)


nodata, servfail, refused, off = requests(NOERROR), requests(SERVFAIL), requests(REFUSED), requests(SERVFAIL, "ipv6=off")
conclude("a backend that has an A record is reached if its AAAA query gets SERVFAIL",
         "nginx 1.22.1 (Debian 1.22.1-9+deb12u11), resolver",
         f"{servfail[502]} of 10 requests get 502, and {refused[502]} if the AAAA query gets REFUSED; "
         f"{nodata[502]} if it gets an empty answer, and {off[502]} with ipv6=off",
         servfail[502] == 10 and refused[502] == 10 and nodata[204] == 10 and off[204] == 10)
PYTHON
