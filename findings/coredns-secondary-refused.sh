#!/usr/bin/env bash
# A secondary zone of CoreDNS does not expire while its primary answers REFUSED.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind file secondary transfer
python3 - <<'PYTHON'
from loopback import *

NAME = "web.example."
primary, secondary = free_port(), free_port()
zone = write("zone", """$TTL 60
@ 60 IN SOA ns hostmaster 1 1 1 10 60
@ 60 IN NS ns
ns 60 IN A 192.0.2.53
web 60 IN A 192.0.2.1
""")


def code(port):
    return rcode(ask(port, NAME)[0])


def server(port, name, rest, wanted):
    return start("coredns", "-conf", write(f"Corefile-{port}", f"{name}:{port} {{\n    bind 127.0.0.1\n{rest}\n}}\n"), ready=lambda: code(port) == wanted)


def until(wanted, seconds):
    """Waits until the secondary answers so. Returns after how many seconds, or None."""
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        if code(secondary) == wanted:
            return time.monotonic() - begin
        time.sleep(0.2)


with_zone = server(primary, "example.", f"    file {zone}\n    transfer {{\n        to *\n    }}", NOERROR)
server(secondary, "example.", f"    secondary {{\n        transfer from 127.0.0.1:{primary}\n    }}", NOERROR)
end(with_zone)
without_zone = server(primary, "other.example.", f"    file {zone} other.example", REFUSED)
if code(secondary) != NOERROR:
    sys.exit(2)
expired = until(SERVFAIL, 60)
end(without_zone)
stopped = until(SERVFAIL, 90)
conclude("a secondary zone expires when its primary no longer has it and answers REFUSED for longer than the SOA's expire, 10 s",
         "CoreDNS 1.15.0, secondary, and as the primary CoreDNS 1.15.0",
         f"after {60 if expired is None else expired:.0f} s of REFUSED the zone is {'still answered' if expired is None else 'expired'}; "
         f"it gets SERVFAIL {stopped or -1:.0f} s after the primary stops",
         expired is None and stopped is not None)
PYTHON
