{{- /* nodens.name is the name of the objects. It does not depend on the release, because a node
has only one agent. */ -}}
{{- define "nodens.name" -}}
{{ coalesce .Values.fullnameOverride .Values.nameOverride "node-local-dns" }}
{{- end }}

{{- /* nodens.image is the image with its digest, or else with its tag. */ -}}
{{- define "nodens.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ printf "%s@%s" .repository .digest }}
{{- else }}{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* nodens.account is the service account's name. */ -}}
{{- define "nodens.account" -}}
{{ if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "nodens.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- /* nodens.upstream is the Service of the central DNS pods. */ -}}
{{- define "nodens.upstream" -}}
{{ .Values.config.customUpstreamsvc | default "kube-dns-upstream" }}
{{- end }}

{{- /* nodens.labels are on every object, and not on pods: those keep theirs over an upgrade. */ -}}
{{- define "nodens.labels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* nodens.merged is a map as YAML: (list text map), where the map's values win. A key that is there
twice is an error for kustomize and Flux. */ -}}
{{- define "nodens.merged" -}}
{{- merge (last . | default dict | deepCopy) (first . | fromYaml) | toYaml }}
{{- end }}

{{- /* nodens.host is the address of health and readiness. */ -}}
{{- define "nodens.host" -}}
{{ first (splitList "," (include "nodens.localDns" .)) }}
{{- end }}

{{- /* nodens.at is the address for a port in the Corefile: (list . 8080). The agent replaces the
placeholder by its first address. */ -}}
{{- define "nodens.at" -}}
{{- $root := first . }}{{ $port := int (last . ) }}
{{- $root.Values.cilium.localRedirect | ternary "" "__PILLAR__LOCAL__DNS__" }}:{{ $port }}
{{- end }}

{{- /* nodens.scrape are the annotations of what Prometheus finds by annotations. */ -}}
{{- define "nodens.scrape" -}}
{{- if and .Values.prometheusScraping.enabled (not .Values.serviceMonitor.enabled) (not .Values.podMonitor.enabled) -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .Values.config.metricsPort | quote }}
{{- end }}
{{- end }}

{{- /* nodens.memory is the runtime's limit: below the kernel's, so that the collector works
harder before the kernel kills; the rest is for what the Go heap does not count. */ -}}
{{- define "nodens.memory" -}}
{{- $limit := dig "limits" "memory" "" (.Values.resources | default dict) | toString }}
{{- if .Values.goMemLimit }}{{ .Values.goMemLimit }}
{{- else if regexMatch "^[0-9]+Mi$" $limit }}{{ div (mul 25 (trimSuffix "Mi" $limit | int64)) 32 }}MiB
{{- else if regexMatch "^[0-9]+Gi$" $limit }}{{ mul 800 (trimSuffix "Gi" $limit | int64) }}MiB
{{- end }}
{{- end }}

{{- /* nodens.kernelPath is what -kernel-path is set to, empty for off. A bare off or on is a
boolean in YAML. */ -}}
{{- define "nodens.kernelPath" -}}
{{- $value := toString .Values.config.kernelPath }}
{{- if eq $value "true" }}on{{ else if not (has $value (list "off" "false")) }}{{ $value }}{{ end }}
{{- end }}

{{- /* nodens.place refuses the namespace that a forgotten -n means. */ -}}
{{- define "nodens.place" -}}
{{- if eq .Release.Namespace "default" }}
{{- fail "the agent's Service kube-dns-upstream finds the cluster's DNS pods only in their own namespace: install the chart there, with -n kube-system" }}
{{- end }}
{{- end }}

{{- /* nodens.page is the argument for the page, with a line break before it. A bare off is a boolean in
YAML. */ -}}
{{- define "nodens.page" }}
{{- $value := toString .Values.config.page }}
{{- if not (has $value (list "off" "false")) }}
            - -page={{ $value }}
{{- end }}
{{- end }}

{{- /* nodens.hostListen are the addresses for the node's own look-ups, separated by commas; empty for none. */ -}}
{{- define "nodens.hostListen" -}}
{{- $addrs := .Values.config.hostListen }}
{{- if not .Values.cilium.localRedirect }}{{ kindIs "slice" $addrs | ternary ($addrs | toStrings | join ",") $addrs }}{{ end }}
{{- end }}

{{- /* nodens.hostResolver is what -host-resolver is set to. A bare off is a boolean in YAML. */ -}}
{{- define "nodens.hostResolver" -}}
{{- toString .Values.config.hostResolver | replace "false" "off" }}
{{- end }}
