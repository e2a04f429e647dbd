#!/usr/bin/env bash
# glibc says that a name has no address, and asks no other server, if only its A query gets SERVFAIL.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian libc6=2.36-9+deb12u14
unset LD_LIBRARY_PATH # only perl, below, is to have this libc
cat >"$work/lookup.pl" <<'PERL'
use Socket qw(getaddrinfo);
my ($error, @addresses) = getaddrinfo($ARGV[0], "80", { socktype => 1 });
print $error ? "$error" : "found";
PERL
look_ups $'nameserver 127.0.0.1\nnameserver 127.0.0.2\noptions timeout:2 attempts:2' <<'PYTHON'
from loopback import *

LIBRARIES = os.environ["work"] + "/root/lib/x86_64-linux-gnu"
failing = {"half": {A: SERVFAIL}, "refused": {A: REFUSED}, "both": {A: SERVFAIL, AAAA: SERVFAIL}}


def first_server(name, qtype, q, tcp):
    return reply(q, failing.get(name.split(".")[0], {}).get(qtype, NOERROR)), 0


first = Upstream(first_server, port=53)
second = Upstream(lambda name, qtype, q, tcp: (reply(q), 0), "127.0.0.2", 53)


def lookup(label):
    """Returns the result for a name that has an IPv4 address only, and how often each server was asked."""
    before = len(first.queries), len(second.queries)
    r = subprocess.run([LIBRARIES + "/ld-linux-x86-64.so.2", "--library-path", LIBRARIES + ":/usr/lib/x86_64-linux-gnu", "/usr/bin/perl",
                        os.environ["work"] + "/lookup.pl", label + ".example"], capture_output=True, text=True)
    if r.returncode:
        sys.stderr.write(r.stderr)
        sys.exit(2)
    return r.stdout, len(first.queries) - before[0], len(second.queries) - before[1]


good, both, half, refused = (lookup(label) for label in ("good", "both", "half", "refused"))
conclude("an A query that gets SERVFAIL is asked of the second name server, or the error is temporary",
         "glibc 2.36 (Debian 2.36-9+deb12u14), getaddrinfo with two name servers; the second one always answers",
         f"A SERVFAIL and AAAA without records: \"{half[0]}\", {half[2]} queries to the second server; REFUSED: \"{refused[0]}\", {refused[2]}. "
         f"If both queries get SERVFAIL: {both[0]}, {both[2]} queries to the second server",
         good == ("found", 2, 0) and both == ("found", 2, 2)
         and half == refused == ("No address associated with hostname", 2, 0))
PYTHON
