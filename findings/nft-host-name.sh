#!/usr/bin/env bash
# nft loads nothing of a file once a host name in one of its rules has a second address.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nftables=1.0.6-2+deb12u2 iptables=1.8.9-2 libbsd0 libedit2 libgmp10 libip4tc2 libip6tc2 libjansson4 libmd0 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libtinfo6 libxtables12
XTABLES_LIBDIR=$(dirname "$(find "$work/root" -name libxt_tcp.so -o -name libxt_tcpudp.so -o -name libxt_udp.so | head -1)")
export XTABLES_LIBDIR
look_ups $'nameserver 127.0.0.1\noptions timeout:2 attempts:2' <<'PYTHON'
from loopback import *

RULES = """table inet filter {
    chain input {
        type filter hook input priority filter; policy drop;
        iif lo accept
        tcp dport 22 accept
        ip saddr %s tcp dport 5432 accept
    }
}
"""


def addresses(name, qtype, q, tcp):
    """Answers with 192.0.2.1, and for two.example with 192.0.2.2 as well."""
    r, (_, _, end) = reply(q), question(q)
    if qtype == A and name == "two.example.":
        r = r[:6] + struct.pack("!H", 2) + r[8:] + r[end:-1] + b"\2"
    return r, 0


Upstream(addresses, port=53)


def run(*args):
    r = subprocess.run(args, capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr


def loaded(name):
    """Loads the rules with a name. Returns the exit code, what is printed, and how many rules there are."""
    code, printed = run("nft", "-f", write("rules", RULES % name))
    _, ruleset = run("nft", "list", "ruleset")
    run("nft", "flush", "ruleset")
    return code, printed, ruleset.count(" accept")


one, two = loaded("one.example"), loaded("two.example")
code, _ = run("iptables-nft", "-A", "INPUT", "-s", "two.example", "-p", "tcp", "--dport", "5432", "-j", "ACCEPT")
_, listed = run("iptables-nft", "-S", "INPUT")
conclude("a name with two addresses in a rule stands for both, as for iptables, or that rule fails",
         "nftables 1.0.6 (Debian 1.0.6-2+deb12u2), iptables 1.8.9 (Debian 1.8.9-2)",
         f"with one address, nft -f loads {one[2]} rules. With two, it exits with {two[0]} ({two[1].splitlines()[0].split('Error: ')[-1] if two[1] else 'nothing printed'}), "
         f"and there are {two[2]} rules; iptables exits with {code} and has {listed.count('-j ACCEPT')} rules",
         one[0] == 0 and one[2] == 3 and two[0] == 1 and "multiple addresses" in two[1] and two[2] == 0 and code == 0 and listed.count("-j ACCEPT") == 2)
PYTHON
