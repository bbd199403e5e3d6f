{{- define "aot.name" -}}
{{- if contains "aot" .Release.Name }}{{ .Release.Name | trunc 35 | trimSuffix "-" }}{{ else }}{{ printf "%s-aot" (.Release.Name | trunc 31 | trimSuffix "-") }}{{ end }}
{{- end }}

{{/* Labels of a part: (dict "root" $ "part" "registry") */}}
{{- define "aot.selector" -}}
app.kubernetes.io/name: aot-registry
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "aot.labels" -}}
{{ include "aot.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "aot.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "aot.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{/* (dict "root" $ "image" .Values.image) */}}
{{- define "aot.image" -}}
image: {{ printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .image.pullPolicy | default .root.Values.image.pullPolicy }}
{{- end }}

{{- define "aot.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "aot.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What registry and sweeper are told. */}}
{{- define "aot.environment" -}}
- name: AOT_DATABASE_URL
  valueFrom:
    secretKeyRef: {{ toJson .Values.secrets.database }}
- name: AOT_BROKER_URL
  valueFrom:
    secretKeyRef: {{ toJson .Values.secrets.broker }}
- name: AOT_BLOB_URL
  value: {{ .Values.blobUrl | quote }}
- name: AOT_PUBLIC_URL
  value: {{ .Values.publicUrl | quote }}
- name: AOT_DATA_DIR
  value: /var/lib/aot
- name: AOT_HOST
  value: 0.0.0.0
- name: AOT_PORT
  value: {{ .Values.registry.port | quote }}
- name: AOT_SIGNING_KEYS
  value: {{ range $index, $key := .Values.secrets.signingKey.keys }}{{ if $index }}:{{ end }}/var/lib/aot-keys/{{ $key }}{{ end }}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "aot.environmentFrom" -}}
{{- with .Values.secrets.s3.name }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}

{{- define "aot.mounts" -}}
- {name: data, mountPath: /var/lib/aot}
- {name: tmp, mountPath: /tmp}
- {name: keys, mountPath: /var/lib/aot-keys, readOnly: true}
{{- end }}

{{- define "aot.volumes" -}}
- name: data
  emptyDir: {}
- name: tmp
  emptyDir: {}
- name: keys
  emptyDir: {medium: Memory}
- name: keys-secret
  secret:
    secretName: {{ .Values.secrets.signingKey.name }}
    defaultMode: 0440
{{- end }}

{{/* A key must be the user's alone (0600), and a mounted secret is always its group's too: a copy in memory. */}}
{{- define "aot.keysContainer" -}}
- name: keys
  {{- include "aot.image" (dict "root" . "image" .Values.image) | nindent 2 }}
  command:
    - install
    - --mode=0600
    {{- range .Values.secrets.signingKey.keys }}
    - /run/aot-keys/{{ . }}
    {{- end }}
    - --target-directory=/var/lib/aot-keys
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  securityContext: {{- include "aot.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: keys, mountPath: /var/lib/aot-keys}
    - {name: keys-secret, mountPath: /run/aot-keys, readOnly: true}
{{- end }}
