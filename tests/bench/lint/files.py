"""Files as a platform team has them in its repository: policies and quotas among objects of Kubernetes itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_POLICY = """\
# Cards of pool {n}.
apiVersion: npufleet.io/v1alpha1
kind: NPUNodePolicy
metadata:
  name: pool-{n}
  labels: {{team: "team-{n}"}}
spec:
  priority: {priority}
  nodeSelector:
    matchLabels: {{npufleet.io/pool: "pool-{n}"}}
    matchExpressions:
    - {{key: kubernetes.io/arch, operator: In, values: [amd64, arm64]}}
  devices:
  - name: near
    match: {{vendors: ["1eff"], devices: ["1250"], numaNodes: [0]}}
    limit: 4
    mode: Passthrough
    passthrough: {{driver: Auto, companions: Bind}}
  - name: debug
    match: {{products: [RBLN-CA25], addresses: ["0000:a3:00.0"]}}
    mode: Unmanaged
  - name: soft
    match: {{products: [Ascend-910B4]}}
    mode: SoftVNPU
    softVNPU:
      library: {{name: vcann-rt, version: 1.2.0}}
      maxInstances: 10
      schedulingPolicies: [FixedShare, Elastic]
      memoryReserve: 1Gi
  rollout: {{maxUnavailable: 1, drain: IfInUse, drainTimeoutSeconds: 600}}
"""
_QUOTA = """\
apiVersion: npufleet.io/v1alpha1
kind: VNPUQuota
metadata: {{name: quota, namespace: "team-{n}"}}
spec:
  limits: {{cores: 400, memory: 96Gi, devices: 2}}
  perPod: {{maxCores: 100}}
"""
_DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: serving-{n}
  namespace: "team-{n}"
  labels: {{app: serving}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: serving}}}}
  template:
    metadata:
      labels: {{app: serving}}
    spec:
      containers:
      - name: model
        image: registry.invalid/serving:{n}
        args: ["--port=8080"]
        ports:
        - {{name: http, containerPort: 8080}}
        env:
        - {{name: CARD, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}
        readinessProbe: {{httpGet: {{path: /healthz, port: http}}, periodSeconds: 5}}
        resources:
          requests: {{cpu: "2", memory: 4Gi}}
          limits: {{memory: 4Gi}}
          claims: [{{name: npu}}]
        volumeMounts: [{{name: models, mountPath: /models, readOnly: true}}]
      resourceClaims: [{{name: npu, resourceClaimTemplateName: npu}}]
      volumes: [{{name: models, persistentVolumeClaim: {{claimName: models}}}}]
"""
_CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: npu, namespace: "team-{n}"}}
spec:
  spec:
    devices:
      requests:
      - name: npu
        exactly:
          deviceClassName: npufleet.io
          selectors:
          - cel: {{expression: 'device.attributes["npufleet.io"].numaNode == 0'}}
"""
_ROLES = """\
apiVersion: v1
kind: Namespace
metadata: {{name: "team-{n}", labels: {{npufleet.io/quota: enabled}}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: team, namespace: "team-{n}"}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "team-{n}"}}]
"""
_OF_KUBERNETES = (_DEPLOYMENT, _CLAIM, _ROLES)


def write_files(top: Path, count: int, *, with_ours: bool) -> list[Path]:
    """``count`` files in folders of 50; with ours every fifth is a policy and every fifth a quota."""
    made = []
    for n in range(count):
        path = top / f"{n // 50:03d}" / f"{n:04d}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_text(n, with_ours=with_ours))
        made.append(path)
    return made


def _text(n: int, *, with_ours: bool) -> str:
    render: Callable[..., str] = _OF_KUBERNETES[n % 3].format
    if with_ours and n % 5 == 0:
        render = _POLICY.format
    elif with_ours and n % 5 == 1:
        render = _QUOTA.format
    return render(n=n, priority=n % 1000)
