// Internal: a fixture of internal tests.

package kubernetes

// outsideWorld are Services in every way that one is reached from outside.
const outsideWorld = `
apiVersion: v1
kind: Namespace
metadata: {name: bare}
---
apiVersion: v1
kind: Namespace
metadata: {name: dns}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  externalIPs: [192.0.2.1, "2001:db8::1", 192.0.2.2]
  ports:
  - {name: http, port: 80, protocol: TCP}
  - {name: dns, port: 53, protocol: UDP}
  - {port: 9000}
status: {loadBalancer: {ingress: [{ip: 192.0.2.3}, {ip: 192.0.2.1}, {}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.1.0.1]}]
---
apiVersion: v1
kind: Service
metadata: {name: shared, namespace: default}
spec: {type: LoadBalancer, clusterIP: 10.96.0.11, ports: [{name: sip, port: 5060, protocol: UDP}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.3}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shared-1, namespace: default, labels: {kubernetes.io/service-name: shared}}
addressType: IPv4
endpoints: [{addresses: [10.1.0.1]}]
---
apiVersion: v1
kind: Service
metadata: {name: portless, namespace: default}
spec: {clusterIP: 10.96.0.12, externalIPs: ["2001:db8::2"]}
---
apiVersion: v1
kind: Service
metadata: {name: named, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.13
  ports: [{name: http, port: 80}, {name: tls, port: 443}, {name: h3, port: 443, protocol: UDP}]
status: {loadBalancer: {ingress: [{hostname: LB-1.example.net}, {hostname: lb-2.example.net}]}}
---
apiVersion: v1
kind: Service
metadata: {name: both, namespace: default}
spec: {type: LoadBalancer, clusterIP: 10.96.0.14, ports: [{name: http, port: 80}]}
status: {loadBalancer: {ingress: [{hostname: lb-1.example.net}, {ip: 192.0.2.5}]}}
---
apiVersion: v1
kind: Service
metadata: {name: inside, namespace: default}
spec: {clusterIP: 10.96.0.15, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: inside-1, namespace: default, labels: {kubernetes.io/service-name: inside}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.1.0.9], hostname: one}]
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: default}
spec: {clusterIP: None, ports: [{name: pg, port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-4, namespace: default, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{name: pg, port: 5432, protocol: TCP}]
endpoints:
- {addresses: [10.1.1.1], hostname: db-0}
- {addresses: [10.1.1.2]}
- {addresses: [10.1.1.3], conditions: {ready: false}}
---
apiVersion: v1
kind: Service
metadata: {name: idle, namespace: default}
spec: {clusterIP: None}
---
apiVersion: v1
kind: Service
metadata: {name: shown, namespace: default}
spec: {clusterIP: None, externalIPs: [192.0.2.6], ports: [{name: pg, port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shown-1, namespace: default, labels: {kubernetes.io/service-name: shown}}
addressType: IPv4
ports: [{name: pg, port: 9999, protocol: TCP}]
endpoints: [{addresses: [10.1.2.1], hostname: shown-0}]
---
apiVersion: v1
kind: Service
metadata: {name: alias, namespace: default}
spec: {type: ExternalName, externalName: www.example.com, externalIPs: [192.0.2.7], ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: plainalias, namespace: default}
spec: {type: ExternalName, externalName: www.example.com}
`
