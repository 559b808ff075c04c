{{- define "placewise.labels" -}}
{"app.kubernetes.io/name": "placewise-kubernetes", "app.kubernetes.io/instance": {{ .Release.Name | quote }}}
{{- end }}
