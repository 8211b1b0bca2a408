{{/* The name every object begins with: a release called holdfast makes holdfast-controller. */}}
{{- define "holdfast.name" -}}
{{- $chart := .Values.nameOverride | default .Chart.Name -}}
{{- $own := ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) -}}
{{ .Values.fullnameOverride | default $own | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/*
Whether hooks are rendered: not empty for yes. What `helm template` prints is applied at once by kubectl, kustomize and Argo CD, and one of the
hooks is the Job that uninstalls.
*/}}
{{- define "holdfast.hooks" -}}
{{- if or (eq .Values.hooks "Always") (lookup "v1" "Namespace" "" "default") }}true{{ end }}
{{- end }}

{{/* What selects the pods of a component: (list . "speaker"). The speakers find each other by the name and the component,
and policies find the bindings of the one release by the name: so no value changes it. */}}
{{- define "holdfast.selector" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels of a component's objects: (list . "speaker"), with further ones for its pods: (list . "speaker" (dict "key" "value")). */}}
{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/part-of: holdfast
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with merge dict (index (append . dict) 2 | default dict) ((index . 0).Values.commonLabels | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "holdfast.image" -}}
{{ include "holdfast.imageOf" (list . .Values.image) }}
{{- end }}

{{/* The image that values name: (list . .Values.image). */}}
{{- define "holdfast.imageOf" -}}
{{- $image := index . 1 -}}
{{ $image.repository }}
{{- with $image.digest }}@{{ . }}{{ else }}:{{ $image.tag | default (index . 0).Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The components that have pods of their own. */}}
{{- define "holdfast.components" -}}
controller speaker{{ if .Values.proxy.enabled }} proxy{{ end }}
{{- end }}

{{/* The account of a component: (list . "speaker"). */}}
{{- define "holdfast.account" -}}
{{ (index (index . 0).Values (index . 1)).serviceAccount.name | default (printf "%s-%s" (include "holdfast.name" (index . 0)) (index . 1)) }}
{{- end }}

{{/*
The account of a component as an object: (list . "speaker"). The admission policies know a daemon by its account: with one for both, each
would be held to what the other may write.
*/}}
{{- define "holdfast.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- $account := (index $root.Values (index . 1)).serviceAccount -}}
{{- $taken := dict -}}
{{- range $component := include "holdfast.components" $root | splitList " " -}}
{{- $name := include "holdfast.account" (list $root $component) -}}
{{- with get $taken $name -}}
{{ fail (printf "%s.serviceAccount.name and %s.serviceAccount.name are the same: each needs an account of its own" . $component) }}
{{- end -}}
{{- $_ := set $taken $name $component -}}
{{- end -}}
{{- if $account.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "holdfast.account" . }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "holdfast.labels" . | nindent 4 }}
  {{- with $account.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Metadata of the pods of a component: (list . "speaker"). */}}
{{- define "holdfast.podMetadata" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
labels:
  {{- /* A new version of the chart alone replaces no pod. */}}
  {{- omit (include "holdfast.labels" (append . $values.podLabels) | fromYaml) "helm.sh/chart" | toYaml | nindent 2 }}
annotations:
  kubectl.kubernetes.io/default-container: {{ index . 1 }}
  {{- with $values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* What both daemons' pods begin with: (list . "speaker"). */}}
{{- define "holdfast.podSpec" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
serviceAccountName: {{ include "holdfast.account" . }}
{{- include "holdfast.pullSecrets" (index . 0) }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
securityContext:
  {{- toYaml $values.podSecurityContext | nindent 2 }}
  {{- if eq (index . 1) "proxy" }}
  {{- $first := $values.nodePorts | splitList "-" | first | int }}
  {{- $last := $values.nodePorts | splitList "-" | last | int }}
  {{- if lt (sub $last $first) 20000 }}
  # A connection to a pod must not take the number of a node port. A wider range would leave few numbers for connections.
  sysctls:
    - name: net.ipv4.ip_local_reserved_ports
      value: {{ printf "7950,%s" $values.nodePorts | quote }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* What the files of all namespaces may have, in MiB: pairs, lists and configurations, each twice. */}}
{{- define "holdfast.proxyFiles" -}}
{{- $services := .Values.proxy.maxServicesPerNamespace | int | default 1000 -}}
{{- add 16 (div (mul (.Values.proxy.maxNamespaces | int) $services 64) 1024) -}}
{{- end }}

{{/*
The resources of the container of all HAProxies. A namespace has four processes at most, of which one starts and two end, each with 8 MiB and 260 KiB for a
Service and what it brings, and connections with 405 KiB of buffers, an eighth more while processes end (docs/evidence/proxy.md).
*/}}
{{- define "holdfast.proxyResources" -}}
{{- $resources := deepCopy .Values.proxy.resources -}}
{{- $services := .Values.proxy.maxServicesPerNamespace | int | default 1000 -}}
{{- $namespace := add (mul 4 (add 8192 (mul 260 $services))) (mul 456 (.Values.proxy.maxConnectionsPerNamespace | int)) -}}
{{- $memory := add 64 (include "holdfast.proxyFiles" . | int) (div (mul (.Values.proxy.maxNamespaces | int) $namespace) 1024) -}}
{{- toYaml (merge $resources (dict "limits" (dict "memory" (printf "%dMi" $memory)))) -}}
{{- end }}

{{/* The pod of a Job, without its containers: (list . "uninstall"). It runs where the controller may. */}}
{{- define "holdfast.jobPod" -}}
{{- $values := (index . 0).Values.controller -}}
serviceAccountName: {{ include "holdfast.name" (index . 0) }}-{{ index . 1 }}
{{- include "holdfast.pullSecrets" (index . 0) }}
restartPolicy: Never
securityContext:
  {{- toYaml $values.podSecurityContext | nindent 2 }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  - key: node-role.kubernetes.io/control-plane
    operator: Exists
  {{- with $values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The container of a Job, without its arguments: (list . "uninstall"). */}}
{{- define "holdfast.jobContainer" -}}
image: {{ include "holdfast.image" (index . 0) }}
imagePullPolicy: {{ (index . 0).Values.image.pullPolicy }}
command: [/controller, {{ index . 1 }}]
env:
  {{- include "holdfast.namespaceVariable" . | nindent 2 }}
resources:
  {{- toYaml (index . 0).Values.controller.resources | nindent 2 }}
securityContext:
  {{- toYaml (index . 0).Values.controller.securityContext | nindent 2 }}
{{- end }}

{{/* A user's node affinity is required beside this, in each of its terms: tolerations keep no speaker away from nodes that cannot run one. */}}
{{- define "holdfast.speakerAffinity" -}}
{{- $able := list (dict "key" "kubernetes.io/os" "operator" "NotIn" "values" (list "windows")) }}
{{- $able = append $able (dict "key" "type" "operator" "NotIn" "values" (list "virtual-kubelet")) }}
{{- $affinity := deepCopy (.Values.speaker.affinity | default dict) }}
{{- $terms := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $affinity }}
{{- range $terms }}
{{- $_ := set . "matchExpressions" (concat $able (.matchExpressions | default list)) }}
{{- end }}
{{- $required := dict "nodeSelectorTerms" $terms }}
{{- toYaml (merge (dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" $required)) $affinity) }}
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
{{- if .Values.proxy.enabled }}{{ $controller = append $controller (list "the proxies' /frontends" 7950) }}{{ end -}}
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

{{/* Arguments of both daemons, and of the proxies' agent. */}}
{{- define "holdfast.args" -}}
{{- include "holdfast.portsApart" . -}}
- --namespace=$(POD_NAMESPACE)
- --metrics-listen={{ include "holdfast.metricsAddress" . }}:{{ .Values.metrics.port }}
{{- if .Values.metrics.tls.enabled }}
- --metrics-tls={{ ternary "/etc/holdfast/metrics" "self" (ne .Values.metrics.tls.secretName "") }}
{{- end }}
{{- if .Values.metrics.authentication }}
- --metrics-auth
{{- end }}
- --load-balancer-class={{ .Values.loadBalancerClass }}
- --default-load-balancer={{ .Values.defaultLoadBalancer }}
- --ignore-exclude-label={{ .Values.ignoreExcludeLabel }}
- --ignore-openstack-annotations={{ .Values.ignoreOpenStackAnnotations }}
- {{ printf "--openstack-node-selector=%s" .Values.openStack.nodeSelector | quote }}
- --data-path={{ .Values.dataPath }}
- --disable-filter={{ not .Values.speaker.filter.enabled }}
- --undeclared-ports={{ .Values.speaker.filter.undeclaredPorts | default (ternary "Allow" "Drop" (eq .Values.preset "MetalLB")) }}
- --allow-internal-traffic={{ .Values.speaker.filter.internalTraffic }}
- --max-ports={{ .Values.maxPortsPerNamespace | int }}
- --daemonset={{ include "holdfast.name" . }}-speaker
- --members-secret={{ include "holdfast.name" . }}-members
{{- with .Values.proxy }}
{{- if .enabled }}
- --proxies={{ $.Release.Namespace }}/{{ include "holdfast.name" $ }}-proxy
- {{ printf "--proxy-namespaces=%s" .namespaceSelector | quote }}
- --proxy-max-namespaces={{ .maxNamespaces | int }}
- --proxy-max-services={{ .maxServicesPerNamespace | int }}
- --proxy-max-idle={{ .maxIdleSeconds | int }}s
{{- $defaults := list }}
{{- range $name, $value := .defaults }}{{ $defaults = append $defaults (printf "%s=%s" $name (ternary ($value | int | toString) ($value | toString) (kindIs "float64" $value))) }}{{ end }}
- --proxy-defaults={{ join "," $defaults }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether pods on dead nodes are marked: not empty for yes. */}}
{{- define "holdfast.deadEndpoints" -}}
{{- if and .Values.deadEndpoints.enabled (ne .Values.preset "MetalLB") }}true{{ end }}
{{- end }}

{{- define "holdfast.namespaceVariable" -}}
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
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
