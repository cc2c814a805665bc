{{- define "es-ttc.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels that select the pods of a component: (list . "gateway"). */}}
{{- define "es-ttc.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "es-ttc.labels" -}}
{{ include "es-ttc.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{- define "es-ttc.image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{- define "es-ttc.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "es-ttc.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* What every pod of es-ttc has. */}}
{{- define "es-ttc.pod" -}}
serviceAccountName: {{ include "es-ttc.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- include "es-ttc.podSecurity" 10001 | nindent 2 }}
volumes:
  - name: tmp
    emptyDir: {}
  - name: cache
    {{- if .Values.cache.existingClaim }}
    persistentVolumeClaim:
      claimName: {{ .Values.cache.existingClaim }}
    {{- else }}
    emptyDir:
      sizeLimit: {{ .Values.cache.sizeLimit }}
    {{- end }}
  {{- with .Values.models.existingClaim }}
  - name: models
    persistentVolumeClaim:
      claimName: {{ . }}
      readOnly: true
  {{- end }}
  {{- with .Values.caConfigMap }}
  {{- if .name }}
  - name: ca
    configMap:
      name: {{ .name }}
      items:
        - key: {{ .key }}
          path: ca.crt
  {{- end }}
  {{- end }}
  {{- if include "es-ttc.files" . }}
  - name: secrets
    projected:
      defaultMode: 0440
      sources:
        {{- range $setting, $secret := .Values.secrets }}
        {{- if has $setting (list "password" "api_key" "bearer_token") }}
        - secret:
            name: {{ $secret.name }}
            items:
              - key: {{ $secret.key }}
                path: {{ $setting }}
        {{- end }}
        {{- end }}
  {{- end }}
{{- end }}

{{- define "es-ttc.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "es-ttc.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Names of the settings whose secrets are mounted as files. */}}
{{- define "es-ttc.files" -}}
{{- range $setting, $_ := .Values.secrets }}{{ if has $setting (list "password" "api_key" "bearer_token") }}{{ $setting }} {{ end }}{{ end }}
{{- end }}

{{/* Image, variables, volumes and rights of a container of es-ttc: (list . "gateway"). */}}
{{- define "es-ttc.container" -}}
{{- $callers := ternary (list "admin_token" "model_token" "sidecar_token") list (ne (index . 1) "gateway") }}
{{- with index . 0 }}
image: {{ include "es-ttc.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- include "es-ttc.containerSecurity" . | nindent 2 }}
env:
  - name: ES_TTC_ENGINE
    value: {{ required "engine: the URL of the engine is missing, e.g. --set engine=https://search.example.org:9200" .Values.engine | quote }}
  - name: ES_TTC_CACHE_DIR
    value: /cache
  {{- if .Values.caConfigMap.name }}
  - name: ES_TTC_CA_CERTS
    value: /etc/es-ttc/ca/ca.crt
  {{- end }}
  {{- if and .Values.redis.enabled (not .Values.secrets.redis) }}
  - name: ES_TTC_REDIS
    value: redis://{{ include "es-ttc.name" . }}-redis:6379/0
  {{- end }}
  {{- range $setting, $value := .Values.settings }}
  - name: ES_TTC_{{ upper $setting }}
    value: {{ if kindIs "string" $value }}{{ $value | quote }}{{ else }}{{ toJson $value | quote }}{{ end }}
  {{- end }}
  {{- range $setting, $secret := .Values.secrets }}
  {{- if has $setting (list "password" "api_key" "bearer_token") }}
  - name: ES_TTC_{{ upper $setting }}_FILE
    value: /etc/es-ttc/secrets/{{ $setting }}
  {{- else if not (has $setting $callers) }}
  - name: ES_TTC_{{ upper $setting }}
    valueFrom:
      secretKeyRef:
        name: {{ $secret.name }}
        key: {{ $secret.key }}
  {{- end }}
  {{- end }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
  - name: cache
    mountPath: /cache
  {{- if .Values.models.existingClaim }}
  - name: models
    mountPath: /models
    readOnly: true
  {{- end }}
  {{- if .Values.caConfigMap.name }}
  - name: ca
    mountPath: /etc/es-ttc/ca
    readOnly: true
  {{- end }}
  {{- if include "es-ttc.files" . }}
  - name: secrets
    mountPath: /etc/es-ttc/secrets
    readOnly: true
  {{- end }}
{{- end }}
{{- end }}

{{/* Rules of what a pod may reach, if there are any. */}}
{{- define "es-ttc.egress" }}
{{- if .Values.networkPolicy.egress }}
  egress:
    - ports:
        - {port: 53, protocol: UDP}
        - {port: 53, protocol: TCP}
    {{- if .Values.redis.enabled }}
    - to:
        - podSelector:
            matchLabels: {{- include "es-ttc.selector" (list . "redis") | nindent 14 }}
      ports:
        - {port: 6379, protocol: TCP}
    {{- end }}
    {{- toYaml .Values.networkPolicy.egress | nindent 4 }}
{{- end }}
{{- end }}
