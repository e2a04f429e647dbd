#!/usr/bin/env bash
# chronyd doubles the time between look-ups of its server while DNS is away at boot.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian chrony=4.3-2+deb12u3 libedit2 libnettle8 libseccomp2 libcap2 libgnutls30
look_ups $'nameserver 127.0.0.1\noptions timeout:1 attempts:1' <<'PYTHON'
from loopback import *

NAMES, well = ("waiting.example.", "asked.example."), [False]
upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, NOERROR if well[0] else SERVFAIL, rdata=bytes([127, 0, 0, 1]) if qtype == A else None), 0), port=53)
begin = time.monotonic()


def chrony(name):
    """Starts a chronyd that does not set the clock, with one server, and returns the socket for chronyc."""
    directory = folder(name)
    os.chmod(directory, 0o770)
    start("chronyd", "-d", "-x", "-u", "root", "-f", write(name + "conf", f"""server {name} iburst
port 0
cmdport 0
pidfile {directory}/pid
bindcmdaddress {directory}/socket
"""), ready=lambda: times(name))
    return directory + "/socket"


def times(name):
    """Returns when the name was asked for, in whole seconds from the start."""
    return sorted({round(t - begin) for t, n, *_ in upstream.queries if n == name})


def wait(done):
    while not done() and time.monotonic() - begin < 400:
        time.sleep(0.2)


waiting, asked = NAMES
sockets = {n: chrony(n) for n in NAMES}
wait(lambda: all(times(n)[-1] > 80 for n in NAMES))
time.sleep(3)
before, recovered = times(waiting), round(time.monotonic() - begin)
well[0] = True
subprocess.run(["chronyc", "-h", sockets[asked], "online"], stdout=subprocess.DEVNULL)
wait(lambda: times(waiting)[-1] > recovered)
after = {n: next((t - recovered for t in times(n) if t >= recovered), None) for n in NAMES}
conclude("when names get SERVFAIL in the first minute and a half after boot, as the node's name server is not there yet, the time server's name is looked up within half a minute of its return",
         "chrony 4.3 (Debian 4.3-2+deb12u3), server with iburst",
         f"it is looked up {', '.join(map(str, before))} s after the start, and {after[waiting]} s after the return of DNS; `chronyc online` has it looked up after {after[asked]} s",
         len(before) == 3 and after[waiting] is not None and after[waiting] > 90 and after[asked] is not None and after[asked] < 10)
PYTHON
