{{- /* Values that make no sense, in words that a schema has not. */}}
{{- define "feedmill.checks" -}}
{{- range $name, $server := .Values.operator.prometheus }}
{{- $at := printf "operator.prometheus.%s" $name }}
{{- $account := not (has (toString $server.serviceAccountToken) (list "" "false" "<nil>")) }}
{{- if and $server.tokenSecret $account }}
{{- fail (printf "%s has tokenSecret and serviceAccountToken; only one token can be shown: remove one of them" $at) }}
{{- end }}
{{- if and $server.caConfigMap $server.caSecret }}
{{- fail (printf "%s has caConfigMap and caSecret; authorities are read from one of them: remove the other" $at) }}
{{- end }}
{{- if hasPrefix "http://" $server.url }}
{{- if or $server.tokenSecret $account }}
{{- fail (printf "%s has a token for %s, where whoever listens could read it: give url https://, or remove tokenSecret and serviceAccountToken" $at $server.url) }}
{{- end }}
{{- if or $server.caConfigMap $server.caSecret }}
{{- fail (printf "%s has authorities for %s, which shows no certificate: give url https://, or remove caConfigMap and caSecret" $at $server.url) }}
{{- end }}
{{- end }}
{{- end }}
{{- $alerts := list }}
{{- range (.Files.Get "rules/feedmill.yaml" | fromYaml).groups }}{{ range .rules }}{{ $alerts = append $alerts .alert }}{{ end }}{{ end }}
{{- range .Values.metrics.disabledRules }}
{{- if not (has . $alerts) }}
{{- fail (printf "metrics.disabledRules has %s, which is no alert of this chart; there are %s" . ($alerts | uniq | join ", ")) }}
{{- end }}
{{- end }}
{{- range .Values.nodes.acceleratorLabels }}
{{- if not (regexMatch "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" .) }}
{{- fail (printf "nodes.acceleratorLabels has %q, which no label of a node can be called; write names such as nvidia.com/gpu.present, without a value" .) }}
{{- end }}
{{- end }}
{{- /* Filters of fields and spans, in brackets, are left to the program. */}}
{{- range splitList "," (toString (default "info" .Values.operator.log)) }}
{{- if not (or (contains "[" .) (contains "]" .) (regexMatch "(?i)^\\s*([a-z0-9_:]+=)?(off|error|warn|info|debug|trace)\\s*$" .)) }}
{{- fail (printf "operator.log has %q, which is no level; write off, error, warn, info, debug or trace, for a part PART=LEVEL, with commas between, such as info,kube=debug" .) }}
{{- end }}
{{- end }}
{{- end }}

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
