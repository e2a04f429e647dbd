{{- /* nodens.block is what both blocks begin with. */ -}}
{{- define "nodens.block" }}
    errors
{{- if .Values.config.enableLogging }}
    log
{{- end }}
{{- if not .Values.cilium.localRedirect }}
    bind __PILLAR__LOCAL__DNS__
{{- end }}
{{- end }}

{{- /* nodens.options are the cache's, but for its limits. */ -}}
{{- define "nodens.options" -}}
{{- with .Values.config.prefetch }}{{ if .enabled }}
        prefetch {{ .amount }} {{ .duration }} {{ .percentage }}
{{- end }}{{ end }}
{{- with .Values.config.serveStale }}
{{- if kindIs "string" . }}
        serve_stale {{ . }}
{{- else if .enabled }}
        serve_stale {{ trim (printf "%s %s" .duration .mode) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* nodens.noipv6 answers for IPv6 addresses. */ -}}
{{- define "nodens.noipv6" -}}
{{- if .Values.config.noIPv6Lookups }}
    template IN AAAA . {
        rcode NOERROR
    }
{{- end }}
{{- end }}

{{- /* nodens.corefile is the base Corefile. */ -}}
{{- define "nodens.corefile" -}}
{{- $c := .Values.config -}}
{{ $c.dnsDomain }}:53 in-addr.arpa:53 ip6.arpa:53 {
{{- include "nodens.block" . }}
    health {{ include "nodens.at" (list . $c.healthPort) }}
{{- if .Values.cilium.localRedirect }} {
        lameduck 15s
    }
{{- end }}
    ready {{ include "nodens.at" (list . $c.readyPort) }}
    prometheus :{{ $c.metricsPort }}
    reload
    loop
{{- include "nodens.noipv6" . }}
{{- if $c.kubernetes }}
{{- if $c.autopath }}
    autopath {{ $c.dnsDomain }} @kubernetes
{{- end }}
    kubernetes {{ $c.dnsDomain }} in-addr.arpa ip6.arpa {
        pods insecure
        ttl 30
{{- if not .Values.cilium.localRedirect }}
        save /var/lib/nodens/view
{{- end }}
        fallthrough in-addr.arpa ip6.arpa
    }
{{- end }}
    cache {
        success 9984 {{ $c.cacheTTL }}
        denial 9984 5
{{- include "nodens.options" . }}
    }
    forward . __PILLAR__CLUSTER__DNS__ {
        {{ $c.commProtocol }}
    }
}
.:53 {
{{- include "nodens.block" . }}
    prometheus :{{ $c.metricsPort }}
    reload
    loop
{{- include "nodens.noipv6" . }}
    cache {{ $c.cacheTTL }}{{ with include "nodens.options" . }} {
{{- . }}
    }
{{- end }}
    forward . {{ $c.upstreamServers }}{{ with $c.upstreamForwardConfig }} {
{{- range $option, $value := . }}
{{- /* toJson writes 1000000 as that; an option without arguments is true or false. */ -}}
{{- $value = kindIs "float64" $value | ternary (toJson $value) $value | toString }}
{{- if ne $value "false" }}
        {{ eq $value "true" | ternary $option (printf "%s %s" $option $value) | trim }}
{{- end }}
{{- end }}
    }
{{- end }}
}
{{- with $c.extraServerBlocks }}
{{ trim . }}
{{- end }}
{{ end }}
