#!/usr/bin/env bash
# One native rule of nft in a chain of iptables, and iptables lists no rule of the chain.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nftables=1.0.6-2+deb12u2 iptables=1.8.9-2 libbsd0 libedit2 libgmp10 libip4tc2 libip6tc2 libjansson4 libmd0 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libtinfo6 libxtables12
XTABLES_LIBDIR=$(dirname "$(find "$work/root" -name libxt_udp.so -o -name libxt_tcpudp.so | head -1)")
export XTABLES_LIBDIR
python3 - <<'PYTHON'
import subprocess
from loopback import *

NODE = """set -e
iptables-nft -t raw -A PREROUTING -p udp --dport 53 -j ACCEPT
nft add rule ip raw PREROUTING %s
iptables-nft -t raw %s
"""


def iptables(rule, command):
    """Adds a rule of iptables and one of nft in a new network namespace, and runs a command of iptables."""
    return subprocess.run(["unshare", "-rn", "sh", "-c", NODE % (rule, command)], capture_output=True, text=True)


known = iptables("udp dport 4789 accept", "-S PREROUTING")
listed = iptables("udp dport 4789 notrack", "-S PREROUTING")
checked = iptables("udp dport 4789 notrack", "-C PREROUTING -p udp --dport 53 -j ACCEPT")
incompatible = "table `raw' is incompatible" in listed.stderr
conclude("`iptables -S` lists its own rules, and leaves out or describes a rule that nft has added to the chain",
         "iptables 1.8.9 (Debian 1.8.9-2), nftables 1.0.6 (Debian 1.0.6-2+deb12u2)",
         f"after `nft add rule ip raw PREROUTING udp dport 4789 notrack` it lists no rule of the chain and exits with {listed.returncode}; "
         f"`-C` finds its rule ({checked.returncode}). With `accept` in place of `notrack` it lists both ({known.returncode})",
         incompatible and listed.returncode == 1 and not listed.stdout and checked.returncode == 0 and known.returncode == 0 and "4789" in known.stdout)
PYTHON
