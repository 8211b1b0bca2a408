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

{{/* How the Prometheus operator reads: (list . $monitor), with what the user adds. The labels namespace and service are a Service's own:
without honorLabels those of the pod would replace them. */}}
{{- define "holdfast.metricsEndpoints" -}}
{{- $values := (index . 0).Values -}}
{{- $endpoint := (index . 1).endpoint | default dict -}}
{{- $node := dict "sourceLabels" (list "__meta_kubernetes_pod_node_name") "targetLabel" "node" -}}
{{- $relabelings := prepend ($endpoint.relabelings | default list) $node -}}
{{- $common := dict "interval" (index . 1).interval "honorLabels" true "relabelings" $relabelings -}}
{{- $daemon := merge (dict "port" "metrics") $common -}}
{{- if or $values.metrics.tls.enabled $values.metrics.authentication }}
{{- $_ := set $daemon "scheme" "https" }}
{{- $_ := set $daemon "tlsConfig" (dict "insecureSkipVerify" true) }}
{{- end }}
{{- range $key, $value := omit $endpoint "relabelings" }}
{{- $_ := set $daemon $key $value }}
{{- end }}
{{- toYaml (list $daemon) }}
{{- end }}
