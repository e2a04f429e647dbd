#!/usr/bin/env bash
# nscd makes a name unknown for half a minute if one look-up of it fails.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nscd=2.36-9+deb12u14 libaudit1 libcap-ng0 libselinux1
echo 'hosts: files dns' >"$work/nsswitch.conf"
printf 'nameserver 127.0.0.1\noptions timeout:1 attempts:1\n' >"$work/resolv.conf"
unshare -rmn bash -c '
	mount --bind "$work/resolv.conf" /etc/resolv.conf || exit 2
	mount --bind "$work/nsswitch.conf" /etc/nsswitch.conf || exit 2
	mount -t tmpfs tmpfs /run || exit 2
	mkdir /run/nscd
	ip link set lo up || exit 2
	exec python3 -' <<'PYTHON'
from loopback import *

failing = {}
dns = Upstream(lambda name, qtype, q, tcp: (failing.get(name, lambda q: reply(q, ttl=5))(q), 0), port=53)
LOOK_UP = """import socket, sys
try:
    print(socket.getaddrinfo(sys.argv[1], 80, type=socket.SOCK_STREAM)[0][4][0])
except OSError as e:
    print(e.strerror)
"""


def look_up(name):
    """Looks the name up in a new process, and returns its address or the error."""
    return subprocess.run([sys.executable, "-c", LOOK_UP, name], capture_output=True, text=True).stdout.strip()


def outage(name, answer):
    """Returns the error of a look-up in an outage, and the seconds from the outage's end to the next success, 60 at most."""
    failing[name + "."] = answer
    error = look_up(name)
    del failing[name + "."]
    begin = time.monotonic()
    while look_up(name) != "192.0.2.1" and time.monotonic() - begin < 60:
        time.sleep(0.5)
    return error, time.monotonic() - begin


def outages(label):
    return outage(label + "-servfail.example", lambda q: reply(q, SERVFAIL)), outage(label + "-silent.example", lambda q: None)


without = outages("without")
# As Debian has them for hosts.
start("nscd", "-F", "-f", write("nscd.conf", """enable-cache hosts yes
positive-time-to-live hosts 3600
negative-time-to-live hosts 20
enable-cache passwd no
enable-cache group no
"""), ready=lambda: os.path.exists("/run/nscd/socket"))
with_nscd = outages("with")
TEMPORARY, UNKNOWN = "Temporary failure in name resolution", "Name or service not known"
(failed, servfail), (dropped, silent) = with_nscd
conclude("a look-up that gets SERVFAIL or no reply is a temporary failure, and is not kept: the next one after the outage succeeds",
         "nscd 2.36 (Debian 2.36-9+deb12u14), negative-time-to-live hosts 20",
         f"\"{failed}\" after SERVFAIL, and for {servfail:.0f} s more, though the name server has the name again; \"{dropped}\" without a reply, and for {silent:.0f} s; "
         f"without nscd, \"{without[0][0]}\", and success {without[0][1]:.0f} s later",
         [error for error, _ in without] == [TEMPORARY] * 2 and max(s for _, s in without) < 5 and
         failed == dropped == UNKNOWN and 10 < servfail < 55 and 10 < silent < 55)
PYTHON
