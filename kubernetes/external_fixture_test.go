// Internal: a fixture of internal tests.

package kubernetes

// outsideWorld are Services in every way that one is reached from outside.
const outsideWorld = `
--- Namespace bare
--- Namespace dns
--- Service default/web
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  externalIPs: [192.0.2.1, "2001:db8::1", 192.0.2.2]
  ports:
  - {name: http, port: 80, protocol: TCP}
  - {name: dns, port: 53, protocol: UDP}
  - {port: 9000}
status: {loadBalancer: {ingress: [{ip: 192.0.2.3}, {ip: 192.0.2.1}, {}]}}
--- EndpointSlice default/web-1 of web
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.1.0.1]}]
--- Service default/shared
spec: {type: LoadBalancer, clusterIP: 10.96.0.11, ports: [{name: sip, port: 5060, protocol: UDP}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.3}]}}
--- EndpointSlice default/shared-1 of shared
addressType: IPv4
endpoints: [{addresses: [10.1.0.1]}]
--- Service default/portless
spec: {clusterIP: 10.96.0.12, externalIPs: ["2001:db8::2"]}
--- Service default/named
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.13
  ports: [{name: http, port: 80}, {name: tls, port: 443}, {name: h3, port: 443, protocol: UDP}]
status: {loadBalancer: {ingress: [{hostname: LB-1.example.net}, {hostname: lb-2.example.net}]}}
--- Service default/both
spec: {type: LoadBalancer, clusterIP: 10.96.0.14, ports: [{name: http, port: 80}]}
status: {loadBalancer: {ingress: [{hostname: lb-1.example.net}, {ip: 192.0.2.5}]}}
--- Service default/inside
spec: {clusterIP: 10.96.0.15, ports: [{name: http, port: 80}]}
--- EndpointSlice default/inside-1 of inside
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.1.0.9], hostname: one}]
--- Service default/db
spec: {clusterIP: None, ports: [{name: pg, port: 5432}]}
--- EndpointSlice default/db-4 of db
addressType: IPv4
ports: [{name: pg, port: 5432, protocol: TCP}]
endpoints:
- {addresses: [10.1.1.1], hostname: db-0}
- {addresses: [10.1.1.2]}
- {addresses: [10.1.1.3], conditions: {ready: false}}
--- Service default/idle
spec: {clusterIP: None}
--- Service default/shown
spec: {clusterIP: None, externalIPs: [192.0.2.6], ports: [{name: pg, port: 5432}]}
--- EndpointSlice default/shown-1 of shown
addressType: IPv4
ports: [{name: pg, port: 9999, protocol: TCP}]
endpoints: [{addresses: [10.1.2.1], hostname: shown-0}]
--- Service default/alias
spec: {type: ExternalName, externalName: www.example.com, externalIPs: [192.0.2.7], ports: [{name: http, port: 80}]}
--- Service default/plainalias
spec: {type: ExternalName, externalName: www.example.com}
`
