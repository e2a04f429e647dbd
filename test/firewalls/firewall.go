package firewalls

import (
	"fmt"

	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// Firewall is what another program, or an administrator, has on a node. Without an agent it lets the
// queries of the pod and of the node to the cluster DNS pass.
type Firewall struct {
	Name string
	// Kind is for the table: the real program, or rules like those that a program writes.
	Kind string
	// Load is the script that puts it in place, Reload the one by which its program does it again. Both
	// run in the node with the programs of a [Release].
	Load, Reload string
	// Saved says that its rules are nft's, which Debian saves by `nft list ruleset`.
	Saved bool
	// Daemon says that a program goes on running; Unload stops it.
	Unload string
}

const (
	program = "the program itself"
	like    = "rules like the program's"
	native  = "native rules"
)

// establish are the rules with which a firewall in nft begins.
const establish = `ct state established,related accept; iif lo accept; meta l4proto { icmp, ipv6-icmp } accept;`

// nft returns the script that loads a ruleset.
func nft(rules string) string { return "nft -f - <<'END'\n" + rules + "\nEND\n" }

// replace returns the script that makes tables anew in one transaction.
func replace(tables, rules string) string {
	return nft(tables + "\n" + rules)
}

// both returns the script that runs commands with $t as iptables and ip6tables.
func both(commands string) string {
	return "for t in iptables ip6tables; do\n" + commands + "\ndone\n"
}

// awaitAddress returns the script that waits until the interface vdns has an address, and fails without it.
func awaitAddress(addr string) string {
	return fmt.Sprintf("for i in $(seq 300); do ! ip -o addr show dev vdns | grep -q %[1]s || break; sleep 0.1; done\nip -o addr show dev vdns | grep -q %[1]s\n", addr)
}

// Firewalls returns the rows.
func Firewalls() []Firewall {
	dropInput := `table inet filter {
	chain input { type filter hook input priority filter; policy drop; ` + establish + ` tcp dport { 22, 10250 } accept; }
}`
	dropBoth := `table inet host {
	chain in { type filter hook input priority 0; policy drop; ` + establish + ` }
	chain out { type filter hook output priority 0; policy drop; ct state established,related accept; oif lo accept; meta l4proto ipv6-icmp accept; udp dport { 53, ` + testbed.UpstreamPort + ` } ip daddr { ` + testbed.UpstreamIP + `, ` + testbed.ClusterDNS4 + ` } accept; tcp dport { 53, ` + testbed.UpstreamPort + ` } accept; ip6 daddr ` + testbed.ClusterDNS6 + ` accept; }
}`
	dropElsewhere := `table inet elsewhere {
	chain early { type filter hook ingress device "vpod" priority 0; policy drop; ether type arp accept; meta l4proto ipv6-icmp accept; ip daddr 10.0.0.0/8 accept; ip6 daddr fd00:202::/32 accept; }
	chain rest { meta l4proto ipv6-icmp accept; drop; }
	chain in { type filter hook input priority 10; policy accept; ct state established accept; iif lo accept; jump rest; }
	chain pods { type filter hook input priority -5; policy accept; meta l4proto ipv6-icmp accept; iifname "vpod" drop; }
}`
	dropRaw := `table inet early {
	chain pre { type filter hook prerouting priority -310; policy drop; iif lo accept; meta l4proto ipv6-icmp accept; ip saddr 10.0.0.0/8 accept; ip6 saddr fd00::/16 accept; }
	chain invalid { type filter hook prerouting priority -140; policy accept; ct state invalid drop; }
}`
	// firewalld 2.3 owns its table, so that it has to accept DNS itself: see docs/how-to/troubleshoot.md.
	return []Firewall{
		{Name: "none", Kind: "", Load: ":", Reload: ":", Saved: true},
		{Name: "ufw", Kind: program, Load: "ufw allow 22/tcp; ufw --force enable", Reload: "ufw reload"},
		{Name: "firewalld, public zone", Kind: program,
			Load: `rm -rf /run/dbus
mkdir /run/dbus
rm -f /usr/share/dbus-1/system-services/org.freedesktop.PolicyKit1.service # firewalld would wait for polkit
dbus-daemon --system --nofork >/run/dbus.log 2>&1 & echo $! >/run/firewalld.pids
for i in $(seq 300); do [ ! -S /run/dbus/system_bus_socket ] || break; sleep 0.1; done
for i in --add-forward --add-interface=vpod --add-interface=vdns --add-interface=vup; do firewall-offline-cmd --zone=public $i >/dev/null 2>&1 || :; done
! grep -q ^NftablesTableOwner=yes /etc/firewalld/firewalld.conf || firewall-offline-cmd --zone=public --add-service=dns
firewalld --nofork --nopid >/run/firewalld.log 2>&1 & echo $! >>/run/firewalld.pids
for i in $(seq 60); do firewall-cmd --state >/dev/null 2>&1 && break || sleep 0.5; done
firewall-cmd --state`,
			Reload: "firewall-cmd --reload", Unload: "kill $(cat /run/firewalld.pids)"},
		// Its instance accepts no packets for its address, by a table of its own; a reload moves the address.
		{Name: "keepalived, an address without packets", Kind: program,
			Load: `cat >/etc/keepalived.conf <<'END'
global_defs {
	nftables keepalived
}
vrrp_instance apiserver {
	interface vup
	state MASTER
	virtual_router_id 51
	priority 100
	advert_int 1
	no_accept
	virtual_ipaddress {
		192.0.2.100/32 dev vdns
	}
}
END
keepalived --dont-fork --vrrp --use-file /etc/keepalived.conf --pid /run/keepalived.pid --vrrp_pid /run/vrrp.pid >/run/keepalived.log 2>&1 &
` + awaitAddress("192.0.2.100"),
			Reload: `cp /etc/keepalived.conf /etc/keepalived.before
sed -i 's/192.0.2.100/192.0.2.101/' /etc/keepalived.conf; kill -HUP $(cat /run/keepalived.pid)
` + awaitAddress("192.0.2.101") + `cp /etc/keepalived.before /etc/keepalived.conf; kill -HUP $(cat /run/keepalived.pid)
` + awaitAddress("192.0.2.100"), Unload: `kill $(cat /run/keepalived.pid)
for i in $(seq 300); do [ -e /run/keepalived.pid ] || break; sleep 0.1; done`},
		{Name: "nftables.service, Debian's workstation.nft", Kind: program, Saved: true,
			Load: "nft -f /usr/share/doc/nftables/examples/workstation.nft", Reload: "nft -f /usr/share/doc/nftables/examples/workstation.nft"},
		{Name: "netfilter-persistent", Kind: program, Load: both(`cat >/etc/iptables/rules.v$(echo $t | sed 's/ip6.*/6/;s/ipt.*/4/') <<END
*filter
:INPUT DROP [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -i lo -j ACCEPT
-A INPUT -p $(echo $t | sed 's/ip6.*/ipv6-icmp/;s/ipt.*/icmp/') -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
END`) + "netfilter-persistent start", Reload: "netfilter-persistent reload"},
		{Name: "policy drop in a table of inet", Kind: native, Saved: true, Load: nft(dropInput), Reload: replace("table inet filter\ndelete table inet filter", dropInput)},
		{Name: "policy drop in input and output", Kind: native, Saved: true, Load: nft(dropBoth), Reload: replace("table inet host\ndelete table inet host", dropBoth)},
		{Name: "drops by interface, by a jump and at ingress", Kind: native, Saved: true, Load: nft(dropElsewhere), Reload: replace("table inet elsewhere\ndelete table inet elsewhere", dropElsewhere)},
		{Name: "policy drop before raw", Kind: native, Saved: true, Load: nft(dropRaw), Reload: replace("table inet early\ndelete table inet early", dropRaw)},
		{Name: "a rule for nft in ip raw PREROUTING", Kind: native,
			Load:   "iptables -t raw -A PREROUTING -p udp --dport 9999 -j ACCEPT; nft add rule ip raw PREROUTING udp dport 4789 notrack",
			Reload: "nft add rule ip raw PREROUTING udp dport 4790 notrack; nft delete rule ip raw PREROUTING handle $(nft -a list chain ip raw PREROUTING | sed -n 's/.*4790.*handle //p')"},
		{Name: "rules that iptables can't read in ip filter", Kind: native, Saved: true,
			Load: nft(`table ip filter {
	set allowed { type ipv4_addr; elements = { 10.244.7.2 }; }
	chain INPUT { type filter hook input priority filter; policy accept; meta l4proto { tcp, udp } th dport 53 counter accept; ip saddr @allowed accept; ether saddr 02:00:00:00:00:01 drop; }
	chain OUTPUT { type filter hook output priority filter; policy accept; meta skuid 12345 tcp dport 25 reject; }
}`), Reload: "nft add rule ip filter INPUT tcp dport 26 drop; nft delete rule ip filter INPUT handle $(nft -a list chain ip filter INPUT | sed -n 's/.*dport 26.*handle //p')"},
		{Name: "kube-proxy's rules, saved and loaded with nft", Kind: like,
			Load: "[ -e /run/kube-proxy.nft ] || {\n" + both(`$t -N KUBE-PROXY-FIREWALL; $t -A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
$t -N KUBE-FIREWALL; $t -A OUTPUT -j KUBE-FIREWALL; $t -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP`) +
				"nft list ruleset >/run/kube-proxy.nft; nft flush ruleset; }\nnft -f /run/kube-proxy.nft", Reload: ":"},
		{Name: "fail2ban", Kind: like, Load: both("$t -N f2b-sshd; $t -A f2b-sshd -j RETURN; $t -I INPUT -p tcp -m multiport --dports 22 -j f2b-sshd") + nft(`table inet f2b-table {
	set addr-set-sshd { type ipv4_addr; elements = { 192.0.2.66 }; }
	chain f2b-chain { type filter hook input priority filter - 1; policy accept; tcp dport 22 ip saddr @addr-set-sshd reject; }
}`), Reload: "nft add element inet f2b-table addr-set-sshd { 192.0.2.67 }; nft delete element inet f2b-table addr-set-sshd { 192.0.2.67 }"},
		{Name: "Calico's chains, workloads may not reach the host", Kind: like, Load: both(`for c in INPUT FORWARD OUTPUT; do $t -N cali-$c; $t -I $c -m comment --comment "cali:$c" -j cali-$c; done
$t -A cali-INPUT -m mark --mark 0x10000/0x10000 -j ACCEPT
$t -A cali-INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
[ $t = iptables ] || $t -A cali-INPUT -p ipv6-icmp -j ACCEPT
$t -A cali-INPUT -i vpod+ -m comment --comment "cali:drop" -j DROP
$t -t raw -N cali-PREROUTING; $t -t raw -I PREROUTING -j cali-PREROUTING; $t -t raw -A cali-PREROUTING -j MARK --set-xmark 0x0/0xf0000`) + nft(`table inet calico-mix {
	chain filter-cali-FORWARD { type filter hook forward priority 0; policy accept; ct state invalid drop; }
}`), Reload: both("$t -D FORWARD -m comment --comment cali:FORWARD -j cali-FORWARD; $t -I FORWARD -m comment --comment cali:FORWARD -j cali-FORWARD")},
		{Name: "Docker's chains", Kind: like, Load: both(`for c in DOCKER DOCKER-USER DOCKER-FORWARD; do $t -N $c; done
$t -A DOCKER-USER -j RETURN; $t -A FORWARD -j DOCKER-USER; $t -A FORWARD -j DOCKER-FORWARD; $t -A FORWARD -m comment --comment "kubernetes forwarding" -j ACCEPT; $t -P FORWARD DROP
$t -t nat -N DOCKER; $t -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER; $t -t nat -A OUTPUT -m addrtype --dst-type LOCAL -j DOCKER; $t -t nat -A DOCKER -p tcp --dport 8099 -j RETURN`), Reload: both("$t -F DOCKER-USER; $t -A DOCKER-USER -j RETURN")},
		{Name: "reject at the end of legacy iptables", Kind: native, Load: `for t in iptables-legacy ip6tables-legacy; do
$t -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; $t -A INPUT -i lo -j ACCEPT
[ $t = iptables-legacy ] || $t -A INPUT -p ipv6-icmp -j ACCEPT
$t -A INPUT -j REJECT
done`, Reload: `for t in iptables-legacy ip6tables-legacy; do $t-save >/run/$t; $t-restore </run/$t; done`},
		{Name: "a connection tracking zone", Kind: native, Saved: true, Load: nft(`table inet zones {
	chain pre { type filter hook prerouting priority -301; policy accept; ct zone set 5; }
	chain out { type filter hook output priority -301; policy accept; ct zone set 5; }
}`), Reload: "nft list ruleset >/dev/null"},
		{Name: "reverse path filter", Kind: native, Saved: true, Load: "for d in all default vpod; do echo 1 >/proc/sys/net/ipv4/conf/$d/rp_filter; done\n" + nft(`table inet rpfilter {
	chain pre { type filter hook prerouting priority -290; policy accept; icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept; fib saddr . mark . iif oif missing drop; }
}`), Reload: replace("table inet rpfilter\ndelete table inet rpfilter", `table inet rpfilter {
	chain pre { type filter hook prerouting priority -290; policy accept; icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept; fib saddr . mark . iif oif missing drop; }
}`)},
		{Name: "tables of one family", Kind: native, Saved: true, Load: nft(fmt.Sprintf(`table ip fw { chain in { type filter hook input priority -5; policy drop; ct state established accept; iif lo accept; }; }
table ip6 fw { chain in { type filter hook input priority 5; policy accept; ct state established accept; meta l4proto ipv6-icmp accept; iif lo accept; ip6 saddr %s tcp dport 22 accept; reject; }; }`, testbed.PodIP6)),
			Reload: "nft list ruleset >/dev/null"},
	}
}
