#!/usr/bin/env bash
# Istio answers the full name of a host outside of the mesh with the address of a Service.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir -p "$work/src"
cat >"$work/src/main.go" <<'GO'
package main

import (
	"log"

	"istio.io/istio/pkg/dns/client"
	nds "istio.io/istio/pkg/dns/proto"
)

func main() {
	server, err := client.NewLocalDNSServer("shop", "shop.svc.cluster.local", "127.0.0.1:15053")
	if err != nil {
		log.Fatal(err)
	}
	// As istiod sends it to the agent.
	mail := &nds.NameTable_NameInfo{Ips: []string{"10.96.0.7"}, Registry: "Kubernetes", Shortname: "mail", Namespace: "shop"}
	server.UpdateLookupTable(&nds.NameTable{Table: map[string]*nds.NameTable_NameInfo{"mail.shop.svc.cluster.local": mail}})
	server.StartDNS()
	select {}
}
GO
build istio-dns istio.io/istio 0.0.0-20260827124520-eed52ebb66ad
look_ups 'search corp.example office.example
nameserver 127.0.0.2' <<'PYTHON'
from loopback import *


def address(name):
    """Returns the last address of an answer of Istio, and how often the name server was asked for the name."""
    before = len(upstream.queries)
    r, _ = ask(15053, name)
    return socket.inet_ntoa(r[-4:]), len(upstream.queries) - before


upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, rdata=socket.inet_aton("192.0.2.1") if qtype == A else None), 0), address="127.0.0.2", port=53)
start("istio-dns", ready=answers(15053, "mail.shop.svc.cluster.local."))
service, mail, web, office = (address(name) for name in ("mail.shop.svc.cluster.local.", "mail.corp.example.", "web.corp.example.", "mail.office.example."))
conclude("mail.corp.example has the address that the name server knows, whatever Services there are in the mesh",
         "Istio 0.0.0-20260827124520-eed52ebb66ad, pkg/dns/client, on a machine whose resolv.conf has search corp.example office.example",
         f"with a Service mail in the machine's namespace, at {service[0]}, mail.corp.example has {mail[0]}, and the name server gets {mail[1]} queries for it; "
         f"web.corp.example has {web[0]}, which is the name server's answer, and so has mail.office.example, {office[0]}",
         service == mail == ("10.96.0.7", 0) and web == office == ("192.0.2.1", 1))
PYTHON
