#!/usr/bin/env bash
# libcurl goes on connecting to the old address of a name for a minute, although each connection fails.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian python3-pycurl=7.45.2-3 libcurl3-gnutls=7.88.1-10+deb12u15 libgnutls30 libldap-2.5-0 libnghttp2-14 libpsl5 librtmp1 libssh2-1 libsasl2-2 libidn2-0 libhogweed6 libnettle8
cat >"$work/request.py" <<'PYTHON'
"""Requests a URL on a new connection for each line of standard input, and prints whether that succeeds. The argument is for how many seconds libcurl keeps addresses."""
import sys

import pycurl

curl = pycurl.Curl()
curl.setopt(pycurl.FRESH_CONNECT, True)
if len(sys.argv) > 1:
    curl.setopt(pycurl.DNS_CACHE_TIMEOUT, int(sys.argv[1]))
for line in sys.stdin:
    curl.setopt(pycurl.URL, line.strip())
    try:
        curl.perform()
        print("y" if curl.getinfo(pycurl.RESPONSE_CODE) == 204 else "n", flush=True)
    except pycurl.error:
        print("n", flush=True)
PYTHON
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

work = os.environ["work"]
command, packages = ("/usr/bin/python3", work + "/request.py"), work + "/root/usr/lib/python3/dist-packages"
moving = MovingBackend()
plain, cured = moving.outage(*command, PYTHONPATH=packages), moving.outage(*command, "1", PYTHONPATH=packages)
conclude("when a name with a TTL of a second gets another address, the next request goes there, at the latest after one has failed",
         "libcurl 7.88.1 (Debian 7.88.1-10+deb12u15), by PycURL 7.45.2",
         f"requests fail for {plain:.0f} s, as the old address is kept while it refuses connections; for {cured:.1f} s with CURLOPT_DNS_CACHE_TIMEOUT of 1 s",
         plain > 40 and cured < 3)
PYTHON
