{{- define "feedmill.name" -}}
{{- $name := .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- if contains "feedmill" $name }}{{ $name }}{{ else }}{{ $name }}-feedmill{{ end -}}
{{- end }}

{{- define "feedmill.account" -}}
{{- .Values.serviceAccount.name | default (include "feedmill.name" .) -}}
{{- end }}

{{- define "feedmill.selector" -}}
app.kubernetes.io/name: feedmill-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "feedmill.labels" -}}
{{ include "feedmill.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* An image's whole name: registry, repository, and digest or tag. */}}
{{- define "feedmill.image" -}}
{{- $registry := .root.Values.global.imageRegistry | trimSuffix "/" -}}
{{- with $registry }}{{ . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end }}

{{- /* Secrets for the registry, of a pod. */}}
{{- define "feedmill.pull" -}}
{{- with .Values.global.imagePullSecrets -}}
imagePullSecrets: {{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What the operator may do where its pipelines are. */}}
{{- define "feedmill.rules" -}}
- apiGroups: [feedmill.dev]
  resources: [datapipelines]
  verbs: [get, list, watch]
- apiGroups: [feedmill.dev]
  resources: [datapipelines/status]
  verbs: [patch]
# Where owner references that block deletion need it, such as on OpenShift.
- apiGroups: [feedmill.dev]
  resources: [datapipelines/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# Marks those that go first when there are to be fewer.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
# Moves one to another node when they stand unevenly; disruption budgets hold.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{- /* Tokens and authorities of Prometheus servers, as sources of a projected volume. One that is not there keeps no operator from starting. */}}
{{- define "feedmill.prometheusFiles" -}}
{{- range $name, $server := .Values.operator.prometheus }}
{{- with $server.caConfigMap }}
- configMap: {name: {{ .name | quote }}, optional: true, items: [{key: {{ .key | quote }}, path: "{{ $name }}/ca"}]}
{{- end }}
{{- with $server.caSecret }}
- secret: {name: {{ .name | quote }}, optional: true, items: [{key: {{ .key | quote }}, path: "{{ $name }}/ca"}]}
{{- end }}
{{- with $server.tokenSecret }}
- secret: {name: {{ .name | quote }}, optional: true, items: [{key: {{ .key | quote }}, path: "{{ $name }}/token"}]}
{{- end }}
{{- if not (has (toString $server.serviceAccountToken) (list "" "true" "false" "<nil>")) }}
- serviceAccountToken: {audience: {{ $server.serviceAccountToken | quote }}, path: "{{ $name }}/token"}
{{- end }}
{{- end }}
{{- end }}
