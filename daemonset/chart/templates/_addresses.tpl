{{- /* nodens.isAddress is "yes" for an IPv4 or IPv6 address, and else empty. */ -}}
{{- define "nodens.isAddress" -}}
{{- $byte := "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])" }}
{{- if regexMatch (printf "^%s([.]%s){3}$" $byte $byte) . }}yes
{{- else if regexMatch "^[0-9a-fA-F]{0,4}(:[0-9a-fA-F]{0,4}){2,7}$|^::([0-9a-fA-F]{1,4}:){6}[0-9a-fA-F]{1,4}$|^([0-9a-fA-F]{1,4}:){7}:$" . }}
{{- $groups := len (without (splitList ":" .) "") }}
{{- $gaps := sub (len (splitList "::" .)) 1 | int }}
{{- $ends := regexMatch "^:[^:]|[^:]:$|:::" . }}
{{- if and (not $ends) (or (and (eq $gaps 0) (eq $groups 8)) (and (eq $gaps 1) (lt $groups 8))) }}yes{{ end }}
{{- end }}
{{- end }}

{{- /* nodens.addresses is a value of config, a list or text with commas, separated by commas:
(list "dnsServer" .Values.config.dnsServer). A part that is no address is an error. */ -}}
{{- define "nodens.addresses" -}}
{{- $name := first . }}{{ $value := last . }}
{{- if not (kindIs "slice" $value) }}
{{- $value = $value | default "" | toString | splitList "," | compact }}
{{- end }}
{{- range $value }}
{{- if not (include "nodens.isAddress" (toString .)) }}
{{- fail (printf "config.%s: %q is no IPv4 or IPv6 address; give one, or several separated by commas without spaces" $name .) }}
{{- end }}
{{- end }}
{{- join "," $value }}
{{- end }}

{{- /* nodens.localDns are the addresses that exist only on the node. */ -}}
{{- define "nodens.localDns" -}}
{{ include "nodens.addresses" (list "localDns" .Values.config.localDns) }}
{{- end }}

{{- /* nodens.takeover are the ClusterIPs to take over. Without rules, and in the network of a
pod, no packets for them reach the agent. */ -}}
{{- define "nodens.takeover" -}}
{{- $addresses := include "nodens.addresses" (list "dnsServer" .Values.config.dnsServer) }}
{{- if and .Values.config.setupIptables (ne .Values.config.netfilter "none") (not .Values.cilium.localRedirect) }}{{ $addresses }}{{ end }}
{{- end }}

{{- /* nodens.listen are all addresses of the agent. */ -}}
{{- define "nodens.listen" -}}
{{ list (include "nodens.localDns" .) (include "nodens.takeover" .) | compact | join "," }}
{{- end }}
