module github.com/nodens-dns/nodens/test/dnstap

go 1.26.0

replace github.com/nodens-dns/nodens => ../..

require (
	github.com/dnstap/golang-dnstap v0.4.0
	github.com/farsightsec/golang-framestream v0.3.0
	github.com/google/go-cmp v0.7.0
	github.com/miekg/dns v1.1.73
	github.com/nodens-dns/nodens v0.0.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/coredns/caddy v1.1.4 // indirect
	github.com/expr-lang/expr v1.17.8 // indirect
	github.com/godbus/dbus/v5 v5.2.4 // indirect
	github.com/quic-go/quic-go v0.64.1 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/net v0.59.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
