{{- define "metergate.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{- define "metergate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{ include "metergate.selector" . }}
{{- end -}}

{{- define "metergate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "metergate.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "metergate.fullname" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}{{ end -}}
{{- end -}}

{{- define "metergate.image" -}}
{{- if .image.digest }}{{ .image.repository }}@{{ .image.digest }}
{{- else }}{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "metergate.pullSecrets" -}}
{{- with .Values.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What the restricted pod security standard asks for, and a root that cannot be written. */}}
{{- define "metergate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "metergate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "metergate.secretEnv" -}}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key | quote }}}}
{{- end -}}

{{/* What a gateway process knows of databases and keys: names of the Secret's keys, never a value. */}}
{{- define "metergate.gatewayEnv" -}}
{{- $secret := required "secret.name must name a Secret of yours with the keys that `secret.keys` lists" .Values.secret.name -}}
{{- $keys := .Values.secret.keys -}}
{{ include "metergate.secretEnv" (dict "name" "METERGATE_DATABASE_URL" "secret" $secret "key" $keys.databaseUrl) }}
{{- if .Values.redis.enabled }}
{{ include "metergate.secretEnv" (dict "name" "METERGATE_REDIS_URL" "secret" $secret "key" $keys.redisUrl) }}
{{- end }}
{{ include "metergate.secretEnv" (dict "name" "METERGATE_ADMIN_KEY" "secret" $secret "key" $keys.adminKey) }}
{{ include "metergate.secretEnv" (dict "name" "METERGATE_KEY_PEPPER" "secret" $secret "key" $keys.keyPepper) }}
{{- with $keys.metricsToken }}
{{ include "metergate.secretEnv" (dict "name" "METERGATE_METRICS_TOKEN" "secret" $secret "key" .) }}
{{- end }}
{{- if .Values.engines }}
{{ include "metergate.secretEnv" (dict "name" "ENGINE_API_KEY" "secret" $secret "key" $keys.engineApiKey) }}
{{- end }}
{{- range .Values.secret.env }}
{{ include "metergate.secretEnv" (dict "name" .name "secret" $secret "key" .key) }}
{{- end }}
{{- with .Values.gateway.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* One engine's settings over the defaults, as YAML. */}}
{{- define "metergate.engine" -}}
{{- mergeOverwrite (deepCopy .defaults) (deepCopy .engine) | toYaml -}}
{{- end -}}

{{- define "metergate.engineName" -}}
{{ include "metergate.fullname" .root }}-engine-{{ .name }}
{{- end -}}

{{/* The settings file: what `config` says, and a provider for every replica of every engine. */}}
{{- define "metergate.config" -}}
{{- $root := . -}}
{{- $config := deepCopy .Values.config -}}
{{- $providers := $config.providers | default dict -}}
{{- $models := $config.models | default list -}}
{{- range $name, $own := .Values.engines -}}
  {{- $engine := include "metergate.engine" (dict "defaults" $root.Values.engineDefaults "engine" $own) | fromYaml -}}
  {{- $served := $engine.servedName | default $name -}}
  {{- $host := include "metergate.engineName" (dict "root" $root "name" $name) -}}
  {{- $routes := list -}}
  {{- range $at := until (int $engine.replicas) -}}
    {{- $provider := printf "%s-%d" $name $at -}}
    {{- if hasKey $providers $provider -}}
      {{- fail (printf "config.providers.%s is also the name of replica %d of engines.%s: rename one of them" $provider $at $name) -}}
    {{- end -}}
    {{- $url := printf "http://%s-%d.%s.%s.svc:%d" $host $at $host $root.Release.Namespace (int $engine.port) -}}
    {{- $entry := dict "kind" "engine" "base_url" $url "api_key" "env:ENGINE_API_KEY" "price_as" $engine.priceAs -}}
    {{- with $engine.costPerHour }}{{ $_ := set $entry "cost_per_hour" . }}{{ end -}}
    {{- $_ := set $providers $provider $entry -}}
    {{- $routes = append $routes (dict "provider" $provider "model" $served) -}}
  {{- end -}}
  {{- $model := dict "name" $served "strategy" $engine.strategy "routes" $routes -}}
  {{- with $engine.contextWindow }}{{ $_ := set $model "context_window" (int .) }}{{ end -}}
  {{- with $engine.maxOutputTokens }}{{ $_ := set $model "max_output_tokens" (int .) }}{{ end -}}
  {{- $models = append $models $model -}}
{{- end -}}
{{- $_ := set $config "providers" $providers -}}
{{- $_ := set $config "models" $models -}}
{{- $_ := set $config "listen" (printf "0.0.0.0:%d" (int .Values.gateway.port)) -}}
{{- $_ := set $config "admin_listen" (printf "0.0.0.0:%d" (int .Values.gateway.adminPort)) -}}
{{- $_ := set $config "shutdown_grace_s" (int .Values.gateway.drainSeconds) -}}
{{- toYaml $config -}}
{{- end -}}

{{/* What no single value shows. */}}
{{- define "metergate.check" -}}
{{- $gateway := .Values.gateway -}}
{{- $many := or (gt (int $gateway.replicas) 1) $gateway.autoscaling.enabled $gateway.keda.enabled -}}
{{- if and $many (not .Values.redis.enabled) -}}
  {{- fail "more than one gateway needs shared limits: set redis.enabled, or gateway.replicas to 1 without autoscaling" -}}
{{- end -}}
{{- if and $gateway.autoscaling.enabled $gateway.keda.enabled -}}
  {{- fail "gateway.autoscaling and gateway.keda would fight over the replicas: enable one of them" -}}
{{- end -}}
{{- if lt (int $gateway.gracePeriodSeconds) (add (int $gateway.drainSeconds) (int $gateway.preStopSeconds) 30) -}}
  {{- fail "gateway.gracePeriodSeconds must be at least drainSeconds + preStopSeconds + 30, or Kubernetes kills streams that may still run" -}}
{{- end -}}
{{- if and $gateway.keda.enabled (not $gateway.keda.prometheusAddress) -}}
  {{- fail "gateway.keda.prometheusAddress must say where Prometheus answers" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
  {{- fail "ingress.host must name the host that callers use" -}}
{{- end -}}
{{- if and .Values.gatewayApi.enabled (not .Values.gatewayApi.parentRefs) -}}
  {{- fail "gatewayApi.parentRefs must name the Gateway that takes the traffic" -}}
{{- end -}}
{{- range $name, $own := .Values.engines -}}
  {{- if not $own.model -}}{{- fail (printf "engines.%s.model must say what it serves: a folder on its volume, or a known name" $name) -}}{{- end -}}
  {{- $engine := include "metergate.engine" (dict "defaults" $.Values.engineDefaults "engine" $own) | fromYaml -}}
  {{- if and $engine.modelVolume.claim $engine.modelVolume.size -}}
    {{- fail (printf "engines.%s.modelVolume takes a claim that exists or a size to claim, not both" $name) -}}
  {{- end -}}
{{- end -}}
{{- if and (not .Values.config.models) (not .Values.engines) -}}
  {{- fail "there is nothing to serve: give config.providers and config.models, or engines" -}}
{{- end -}}
{{- end -}}
