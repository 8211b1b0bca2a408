{{/* The host of --metrics-listen. */}}
{{- define "holdfast.metricsAddress" -}}
{{- $address := ternary "$(POD_IP)" .Values.metrics.address (eq .Values.metrics.address "Pod") -}}
{{- with $address }}[{{ . }}]{{ end }}
{{- end }}

{{- define "holdfast.metricsVariable" -}}
{{- if eq .Values.metrics.address "Pod" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}
{{- end }}

{{- define "holdfast.metricsMount" -}}
{{- with .Values.metrics.tls }}
{{- if and .enabled .secretName -}}
volumeMounts:
  - name: metrics
    mountPath: /etc/holdfast/metrics
    readOnly: true
{{- end }}
{{- end }}
{{- end }}

{{- define "holdfast.metricsVolume" -}}
{{- with .Values.metrics.tls }}
{{- if and .enabled .secretName -}}
volumes:
  - name: metrics
    secret:
      secretName: {{ .secretName }}
{{- end }}
{{- end }}
{{- end }}

{{/* How the Prometheus operator reads: (list . $monitor), with what the user adds. */}}
{{- define "holdfast.metricsEndpoint" -}}
{{- $metrics := (index . 0).Values.metrics -}}
{{- $fields := dict "port" "metrics" "interval" (index . 1).interval -}}
{{- if or $metrics.tls.enabled $metrics.authentication }}
{{- $_ := set $fields "scheme" "https" }}
{{- if not (hasKey (index . 1).endpoint "tlsConfig") }}
{{- $_ := set $fields "tlsConfig" (dict "insecureSkipVerify" true) }}
{{- end }}
{{- end }}
{{- $node := dict "sourceLabels" (list "__meta_kubernetes_pod_node_name") "targetLabel" "node" }}
{{- $_ := set $fields "relabelings" (prepend ((index . 1).endpoint.relabelings | default list) $node) }}
{{- toYaml (merge dict (omit (index . 1).endpoint "relabelings") $fields) }}
{{- end }}
