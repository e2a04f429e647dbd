#!/usr/bin/env bash
# AnyEvent gives a Service the addresses of another name in the search path, too.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian libanyevent-perl=7.170-2+b3 libcommon-sense-perl
cat >"$work/connect.pl" <<'PERL'
# Prints the addresses of a name, and the one that a connection to port 8080 reaches.
use AnyEvent;
use AnyEvent::Socket;
my $found = AnyEvent->condvar;
AnyEvent::Socket::resolve_sockaddr($ARGV[0], 8080, "tcp", undef, undef, sub { $found->send(@_) });
print join(" ", map { format_address((AnyEvent::Socket::unpack_sockaddr($_->[3]))[1]) } $found->recv), "\n";
my $connected = AnyEvent->condvar;
tcp_connect($ARGV[0], 8080, sub { $connected->send($_[1]) });
print $connected->recv, "\n";
PERL
export PERL5LIB=$work/root/usr/lib/x86_64-linux-gnu/perl5/5.36
look_ups $'nameserver 127.0.0.1\nsearch shop.svc.cluster.local svc.cluster.local cluster.local corp.example\noptions ndots:5' <<'PYTHON'
from loopback import *

RECORDS = {("db.shop.svc.cluster.local.", A): bytes([127, 0, 0, 2]), ("db.corp.example.", AAAA): socket.inet_pton(socket.AF_INET6, "::1")}


def handle(name, qtype, q, tcp):
    """Has a Service with an IPv4 address, and a host of the company with an IPv6 address."""
    rdata = RECORDS.get((name, qtype))
    if rdata or not any(n == name for n, _ in RECORDS):
        return reply(q, NOERROR if rdata else NXDOMAIN, rdata=rdata), 0
    return q[:2] + struct.pack("!5H", 0x8580, 1, 0, 0, 0) + q[12 : question(q)[2]], 0


Upstream(handle, port=53)


def anyevent(name):
    """Returns the addresses that AnyEvent finds, and the one that it connects to."""
    p = subprocess.run(["perl", os.environ["work"] + "/connect.pl", name], stdout=subprocess.PIPE, text=True, check=True)
    addresses, peer = p.stdout.split("\n")[:2]
    return addresses.split(), peer


def libc(name):
    return sorted({a[4][0] for a in socket.getaddrinfo(name, 80)})


other = socket.create_server(("::1", 8080), family=socket.AF_INET6)
(short, peer), (full, none), glibc = anyevent("db"), anyevent("db.shop.svc.cluster.local"), libc("db")
conclude("a Service with an IPv4 address alone has that address, also by its short name, as the search ends at the first name that exists",
         "AnyEvent 7.170 (Debian 7.170-2+b3), AnyEvent::Socket",
         f"db has {' and '.join(short)}, where the latter is the address of db.corp.example, the last name in the search path, and reaches {peer} while the Service refuses connections; "
         f"by its full name it has {' '.join(full)}, and reaches {none or 'nothing'}; for glibc db has {' '.join(glibc)}",
         short == ["127.0.0.2", "::1"] and peer == "::1" and full == glibc == ["127.0.0.2"] and not none)
PYTHON
