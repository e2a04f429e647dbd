{{- /* nodens.adopt moves values of lablabs' chart k8s-nodelocaldns-helm to where this chart has
them. Every template begins with it, because they are rendered in any order; moving twice
changes nothing. */ -}}
{{- define "nodens.adopt" -}}
{{- $v := .Values }}{{ $c := $v.config }}
{{- if or $c.zones $c.cilium }}
{{- fail "config.zones and config.cilium are of the chart k8s-nodelocaldns-helm: write additional zones into config.extraServerBlocks, or the whole Corefile into config.customConfig; set cilium.localRedirect for Cilium; then remove them" }}
{{- end }}
{{- $moves := list
  (list $c "localDnsIp" $c "localDns")
  (list $c "kubeDnsIp" $c "dnsServer")
  (list $v.image.args "interfaceName" $c "interfaceName")
  (list $v.image.args "healthPort" $c "healthPort")
  (list $v.image.args "setupInterface" $c "setupInterface")
  (list $v.image.args "skipTeardown" $c "skipTeardown")
  (list $v.image.args "setupIptables" $c "setupIptables")
  (list $v.image.args "upstreamSvc" $c "customUpstreamsvc")
  (list $v.metrics "port" $c "metricsPort")
  (list $v.podmonitor "enabled" $v.podMonitor "enabled")
  (list $v.servicemonitor "enabled" $v.serviceMonitor "enabled")
  (list $v.servicemonitor "honorLabels" $v.serviceMonitor "honorLabels")
  (list $v.servicemonitor "relabelings" $v.serviceMonitor "relabelings")
  (list $v.servicemonitor "metricRelabelings" $v.serviceMonitor "metricRelabelings") }}
{{- range $moves }}
{{- $from := index . 0 | default dict }}{{ $key := index . 1 }}
{{- if and (hasKey $from $key) (not (kindIs "invalid" (get $from $key))) }}
{{- $_ := set (index . 2) (index . 3) (get $from $key) }}
{{- end }}
{{- end }}
{{- with $v.metrics }}{{ if hasKey . "prometheusScrape" }}
{{- $_ := set $v.prometheusScraping "enabled" (eq (toString .prometheusScrape) "true") }}
{{- end }}{{ end }}
{{- end }}
