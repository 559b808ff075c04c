{{- define "placewise.labels" -}}
{"app.kubernetes.io/name": "placewise-kubernetes", "app.kubernetes.io/instance": {{ .Release.Name | quote }}}
{{- end }}

{{- /* Whether callers show certificates: "true" or "". */ -}}
{{- define "placewise.mutual" -}}
{{- if and .Values.listen.tlsSecret .Values.listen.clientCertificates }}true{{ end -}}
{{- end }}

{{- define "placewise.healthPort" -}}
{{- if .Values.listen.healthPort }}{{ .Values.listen.healthPort }}{{ else }}8081{{ end -}}
{{- end }}

{{- /* Whether the rules switch the watch of Jobs off: "true" or "". */ -}}
{{- define "placewise.jobsUnwatched" -}}
{{- with .Values.extraRules }}{{ if eq (toJson (index . "is_job_watched")) "false" }}true{{ end }}{{ end -}}
{{- end }}

{{- /* Whether our scheduling gate holds pods: "true" or "". */ -}}
{{- define "placewise.gates" -}}
{{- with .Values.gates }}{{ if .enabled }}true{{ end }}{{ end -}}
{{- end }}

{{- define "placewise.devicesUnread" -}}
{{- with .Values.devices }}{{ if eq (toJson .enabled) "false" }}true{{ end }}{{ end -}}
{{- end }}

{{- /* Refuses what would leave the port open, and values of an earlier chart that do not say what is served. */ -}}
{{- define "placewise.check" -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.from) }}
{{- fail "networkPolicy.from is empty, which would let everybody in: name the peers that may call the adapter" }}
{{- end }}
{{- if not (or (include "placewise.mutual" .) .Values.networkPolicy.enabled) }}
{{- fail "nobody guards the adapter's port: set listen.clientCertificates=true (with listen.tlsSecret, whose Secret then needs a ca.crt), or networkPolicy.enabled=true and networkPolicy.from" }}
{{- end }}
{{- if and (include "placewise.gates" .) (not .Values.gates.guard) }}
{{- fail "gates.guard is false: without its validating policy the adapter could patch any pod, so gates.enabled is refused" }}
{{- end }}
{{- if eq (toJson .Values.listen.bind) "null" }}
{{- fail "listen.bind is not set: true where kube-scheduler is configured with a bindVerb, else false" }}
{{- end }}
{{- if eq (toJson .Values.listen.volcano) "null" }}
{{- fail "listen.volcano is not set: true where Volcano calls the adapter, else false" }}
{{- end }}
{{- end }}
