#!/usr/bin/env bash
# nft lists a rule of iptables in a form that nft can't read again.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nftables=1.0.6-2+deb12u2 iptables=1.8.9-2 libbsd0 libedit2 libgmp10 libip4tc2 libip6tc2 libjansson4 libmd0 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libtinfo6 libxtables12
XTABLES_LIBDIR=$(dirname "$(find "$work/root" -name libxt_socket.so)")
export XTABLES_LIBDIR
python3 - <<'PYTHON'
import subprocess
from loopback import *

NODE = """set -e
iptables-nft -t raw -A PREROUTING -p udp --dport 53 %s -j NOTRACK
nft list ruleset >"$work/saved.nft"
nft flush ruleset
nft -f "$work/saved.nft"
"""


def reload(match):
    """Adds a rule in a new network namespace, saves all rules, removes them and loads the file."""
    return subprocess.run(["unshare", "-rn", "sh", "-c", NODE % match], capture_output=True, text=True)


plain, socket = reload(""), reload("-m socket")
conclude("what `nft list ruleset` prints, `nft -f` loads: Debian saves a firewall like this",
         "nftables 1.0.6 (Debian 1.0.6-2+deb12u2), iptables 1.8.9 (Debian 1.8.9-2)",
         f"a rule without extensions is loaded (exit code {plain.returncode}); with -m socket it is not ({socket.returncode}: "
         f"{next(l for l in socket.stderr.splitlines() if 'Error: ' in l).split('Error: ')[-1]})",
         plain.returncode == 0 and socket.returncode == 1 and "unexpected socket" in socket.stderr)
PYTHON
