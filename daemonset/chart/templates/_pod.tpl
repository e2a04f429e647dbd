{{- /* nodens.updateStrategy is the strategy. A rolling update has either maxSurge or
maxUnavailable; the one that is not given is set to what Kubernetes accepts beside the other. */ -}}
{{- define "nodens.updateStrategy" -}}
{{- $strategy := .Values.updateStrategy }}
type: {{ $strategy.type }}
{{- if eq $strategy.type "RollingUpdate" }}
{{- $given := $strategy.rollingUpdate | default dict }}
{{- $surge := get $given "maxSurge" | toString | replace "<nil>" "" }}
{{- $unavailable := get $given "maxUnavailable" | toString | replace "<nil>" "" }}
{{- $none := list "0" "0%" }}
{{- if and (eq $surge "") (eq $unavailable "") }}
{{- $surge = "1" }}{{ $unavailable = "0" }}
{{- else if eq $surge "" }}
{{- $surge = has $unavailable $none | ternary "1" "0" }}
{{- else if eq $unavailable "" }}
{{- $unavailable = has $surge $none | ternary "1" "0" }}
{{- end }}
{{- if eq (has $surge $none) (has $unavailable $none) }}
{{- fail (printf "updateStrategy.rollingUpdate: Kubernetes refuses maxSurge %s beside maxUnavailable %s: one of them has to be 0, and not both" $surge $unavailable) }}
{{- end }}
rollingUpdate:
  maxSurge: {{ $surge }}
  maxUnavailable: {{ $unavailable }}
{{- end }}
{{- end }}

{{- /* nodens.securityContext is the container's: what the agent needs, and securityContext. */ -}}
{{- define "nodens.securityContext" -}}
{{- $cilium := .Values.cilium.localRedirect }}
{{- $given := deepCopy (.Values.securityContext | default dict) }}
{{- $caps := dict "drop" (list "ALL") }}
{{- $add := list }}
{{- if not $cilium }}
{{- /* For the interface, its addresses and the rules; for port 53; for a program in the kernel. */ -}}
{{- $add = list "NET_ADMIN" "NET_BIND_SERVICE" }}
{{- if include "nodens.kernelPath" . }}{{ $add = concat $add (list "BPF" "PERFMON") }}{{ end }}
{{- end }}
{{- $asked := $given.capabilities | default dict }}
{{- $more := $asked.add | default list }}
{{- $own := dict "readOnlyRootFilesystem" true "privileged" false }}
{{- /* Kubernetes refuses false beside these. */ -}}
{{- if not (or $given.privileged (has "SYS_ADMIN" $more) (has "CAP_SYS_ADMIN" $more)) }}
{{- $own = set $own "allowPrivilegeEscalation" false }}
{{- end }}
{{- /* Root, because added capabilities take effect only for root. */ -}}
{{- if not $cilium }}{{ $own = set $own "runAsUser" 0 }}{{ end }}
{{- with concat $add $more | uniq }}{{ $caps = set $caps "add" . }}{{ end }}
{{- with $asked.drop }}{{ $caps = set $caps "drop" . }}{{ end }}
{{- $given = merge (dict "capabilities" $caps) $given $own }}
{{- toYaml $given }}
{{- end }}
