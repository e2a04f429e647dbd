// Command clients asks an agent and a CoreDNS beside it with real client programs: the tools and resolver libraries of
// Debian, Go's resolver, and HAProxy.
//
// A [Client] is a program and how it asks for one name and type. A [Situation] is a name that is hard for some: 120
// addresses, 120 SRV records, a name that does not exist. Both servers answer the same names, the agent from objects of a
// cluster and CoreDNS from a zone file, at loopback addresses and port 53, because many programs know no other port. A
// program that reads /etc/resolv.conf gets one of its own in a mount namespace. So the suite needs root.
//
// What counts is how many different records a program prints.
//
//	go run ./test/clients -page docs/reference/clients.md
//
// asks with all programs that are installed, and writes the table into the page.
package main
