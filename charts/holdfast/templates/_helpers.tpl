{{/* The name every object begins with: a release called holdfast makes holdfast-controller. */}}
{{- define "holdfast.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* What selects the pods of a component: (list . "speaker"). The speakers find each other by the name and the component. */}}
{{- define "holdfast.selector" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels of a component's objects: (list . "speaker"). */}}
{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end }}

{{- define "holdfast.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "holdfast.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A listener whose port is another's would end its process at each start. */}}
{{- define "holdfast.portsApart" -}}
{{- $metrics := list "metrics.port" .Values.metrics.port -}}
{{- $members := list "speaker.membersPort" .Values.speaker.membersPort -}}
{{- $health := list "speaker.healthPort" .Values.speaker.healthPort -}}
{{- $debug := list "speaker.debugPort" .Values.speaker.debugPort -}}
{{- $controller := list $metrics (list "the controller's /healthz" 9218) (list "the controller's /debug" 9219) -}}
{{- $udp := list $members (list "speaker.heartbeatPort" .Values.speaker.heartbeatPort) -}}
{{- range $together := list $controller (list $metrics $health $debug $members) $udp }}
{{- $taken := dict }}
{{- range $listener := $together }}
{{- $port := last $listener | int | toString }}
{{- with get $taken $port }}{{ fail (printf "%s and %s are both %s" . (first $listener) $port) }}{{ end }}
{{- $_ := set $taken $port (first $listener) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Arguments of both daemons. */}}
{{- define "holdfast.args" -}}
{{- include "holdfast.portsApart" . -}}
- --namespace=$(POD_NAMESPACE)
- --metrics-listen=:{{ .Values.metrics.port }}
- --log-level={{ .Values.logLevel }}
- --load-balancer-class={{ .Values.loadBalancerClass }}
- --default-load-balancer={{ .Values.defaultLoadBalancer }}
- --ignore-exclude-label={{ .Values.ignoreExcludeLabel }}
- --ignore-openstack-annotations={{ .Values.ignoreOpenStackAnnotations }}
- {{ printf "--openstack-node-selector=%s" .Values.openStack.nodeSelector | quote }}
- --disable-filter={{ not .Values.speaker.filter.enabled }}
- --allow-internal-traffic={{ .Values.speaker.filter.internalTraffic }}
- --max-ports={{ .Values.maxPortsPerNamespace | int }}
- --daemonset={{ include "holdfast.name" . }}-speaker
- --members-secret={{ include "holdfast.name" . }}-members
{{- end }}

{{- define "holdfast.namespaceVariable" -}}
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}

{{/* Security of pods that need nothing of the node. */}}
{{- define "holdfast.unprivilegedPod" -}}
runAsNonRoot: true
runAsUser: 65534
runAsGroup: 65534
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "holdfast.unprivilegedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Probes: (dict "port" 9218), with a host where the port is open on that address only. */}}
{{- define "holdfast.probes" -}}
livenessProbe:
  httpGet:
    {{- with .host }}
    host: {{ . }}
    {{- end }}
    path: /healthz
    port: {{ .port }}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet:
    {{- with .host }}
    host: {{ . }}
    {{- end }}
    path: /readyz
    port: {{ .port }}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}
