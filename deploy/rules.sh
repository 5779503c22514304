#!/bin/sh
# Writes kubernetes/monitoring/prometheusrule.yaml anew, from prometheus/alerts.yml: `deploy/rules.sh`, from anywhere.
# The Prometheus Operator takes the same text, indented, under `spec`.
set -eu
cd "$(dirname "$0")"
{
    cat <<'END'
# Written by deploy/rules.sh from deploy/prometheus/alerts.yml: change the alerts there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: tensor-gateway
spec:
END
    sed 's/./  &/' prometheus/alerts.yml
} >kubernetes/monitoring/prometheusrule.yaml
