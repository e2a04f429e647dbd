#!/usr/bin/env bash
# A saved ruleset that has a table with an owner loads without that table, or not at all.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nftables=1.0.6-2+deb12u2 libedit2 libgmp10 libjansson4 libmd0 libbsd0 libmnl0 libnftables1 libnftnl11 libtinfo6 libxtables12
cat >"$work/node" <<'SH'
# Saves the rules of a firewall and of a program that owns its table, and loads them again.
set -e
mkfifo "$work/agent"
nft -i <"$work/agent" >/dev/null &
exec 3>"$work/agent"
echo 'add table ip agent { flags owner; }' >&3
echo 'add chain ip agent c { type filter hook output priority raw; }' >&3
nft add table ip firewall
nft add chain ip firewall c '{ type filter hook input priority filter; }'
until nft list chain ip agent c >/dev/null 2>&1; do sleep 0.1; done
nft list ruleset >"$work/saved"
{ echo 'flush ruleset'; cat "$work/saved"; } >"$work/nftables.conf"
nft delete table ip firewall
nft -f "$work/nftables.conf" 2>"$work/errors" && beside=0 || beside=$?
echo "beside $beside" $(nft list tables)
exec 3>&-
wait
nft -f "$work/nftables.conf" && after=0 || after=$?
echo "after $after" $(nft list tables)
SH
python3 - <<'PYTHON'
import subprocess
from loopback import *

node = subprocess.run(["unshare", "-rn", "sh", os.environ["work"] + "/node"], capture_output=True, text=True)
if node.returncode:
    sys.stderr.write(node.stderr)
    sys.exit(2)
beside, after = node.stdout.splitlines()
with open(os.environ["work"] + "/errors") as f:
    refused = "Operation not permitted" in f.read()
conclude("`flush ruleset` and what `nft list ruleset` has printed bring the saved rules back, or fail",
         "nftables 1.0.6 (Debian 1.0.6-2+deb12u2), Linux " + os.uname().release.split("-")[0],
         f"while a program owns one of the tables, loading exits with {beside.split()[1]} and loads no table; "
         f"once it has ended, loading exits with {after.split()[1]} and loads all tables but that one",
         refused and beside == "beside 1 table ip agent" and after == "after 0 table ip firewall")
PYTHON
