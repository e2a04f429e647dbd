#!/usr/bin/env bash
# nginx does not ask its second name server if the first one fails.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nginx=1.22.1-9+deb12u11 libpcre2-8-0 libssl3 zlib1g libcrypt1
python3 - <<'PYTHON'
from nginx import backend, statuses
from loopback import *

service = backend()


def requests(code):
    """Returns the statuses of 10 requests when one of two name servers answers each query with that RCODE."""
    address = bytes([127, 0, 0, 1])
    good = Upstream(lambda name, qtype, q, tcp: (reply(q, rdata=address if qtype == A else None), 0))
    return statuses([good, Upstream(lambda name, qtype, q, tcp: (reply(q, code), 0))], service)


servfail, refused = requests(SERVFAIL), requests(REFUSED)
conclude("with two servers in resolver, a name that gets SERVFAIL from one is asked of the other, as with resolv.conf",
         "nginx 1.22.1 (Debian 1.22.1-9+deb12u11), resolver with two addresses",
         f"{servfail[502]} of 10 requests get 502 if one of the servers answers SERVFAIL, and {refused[502]} if it answers REFUSED",
         3 <= servfail[502] <= 7 and 3 <= refused[502] <= 7)
PYTHON
