{{- /* nodens.warnings are the values that have no effect, or one that surprises, a line each. */ -}}
{{- define "nodens.warnings" -}}
{{- $c := .Values.config }}
{{- if contains "k8s-dns-node-cache" .Values.image.repository }}
image.repository={{ .Values.image.repository }} is NodeLocal DNSCache's image, which does not start with these arguments: set it to nodens' image.
{{- end }}
{{- if and (hasKey $c "bindIp") (not $c.bindIp) }}
config.bindIp=false has no effect: the agent listens at its own addresses only.
{{- end }}
{{- with $c.port }}
{{- if ne (int (.number | default 53)) 53 }}
config.port.number={{ .number }} has no effect: the agent listens on port 53.
{{- end }}
{{- if or (ne (.tcp | default "dns-tcp") "dns-tcp") (ne (.udp | default "dns") "dns") }}
config.port.tcp and config.port.udp have no effect: the names of the ports are dns-tcp and dns.
{{- end }}
{{- end }}
{{- if and $c.dnsServer (not .Values.cilium.localRedirect) (not (include "nodens.takeover" .)) }}
config.dnsServer has no effect: without rules (config.setupIptables, config.netfilter) no ClusterIP can be taken over.
{{- end }}
{{- if and .Values.cilium.localRedirect $c.dnsServer }}
config.dnsServer has no effect with cilium.localRedirect.
{{- end }}
{{- with dig "args" dict .Values.image }}
{{- range $name := list "syncInterval" "quiet" "setupEbtables" }}
{{- if hasKey $.Values.image.args $name }}
image.args.{{ $name }} has no effect.
{{- end }}
{{- end }}
{{- end }}
{{- if eq (toString .Values.useHostNetwork) "false" }}
useHostNetwork=false has no effect: set cilium.localRedirect for an agent with the network of a pod.
{{- end }}
{{- range $name := list "readinessProbe" "podSecurityContext" }}
{{- if get $.Values $name }}
{{ $name }} has no effect: the chart sets its own.
{{- end }}
{{- end }}
{{- range $name, $keys := dict "podmonitor" (list "metricRelabelings") "servicemonitor" (list "honorTimestamps") }}
{{- range $keys }}
{{- if get (get $.Values $name | default dict) . }}
{{ $name }}.{{ . }} has no effect.
{{- end }}
{{- end }}
{{- end }}
{{- range $hook, $handler := .Values.lifecycle }}
{{- if hasKey ($handler | default dict) "exec" }}
lifecycle.{{ $hook }}.exec: the image has no shell; only /usr/local/bin/nodens can run.
{{- end }}
{{- end }}
{{- $strategy := include "nodens.updateStrategy" . | fromYaml }}
{{- if and (eq $strategy.type "RollingUpdate") (has (toString $strategy.rollingUpdate.maxSurge) (list "0" "0%")) }}
updateStrategy.rollingUpdate.maxUnavailable={{ $strategy.rollingUpdate.maxUnavailable }}: a node's agent stops before the new one starts, without a hand-over. Set maxSurge instead once nodens runs on all nodes.
{{- end }}
{{- end }}
