package lab

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

func TestNodeFiles(t *testing.T) {
	hosts := plan(Config{Workers: 1})
	for _, tc := range []struct {
		name   string
		h      wire.Host
		c      Config
		limits bool
		file   string
		has    []string
		hasNot []string
	}{
		{
			name: "runtime without controllers", h: hosts[1], file: "containerd.toml",
			has: []string{`BinaryName = "/run/lab/bin/runcwrap"`, `sandbox = "lab/pause:v1"`},
		},
		{name: "runtime with controllers", h: hosts[1], limits: true, file: "containerd.toml", has: []string{`BinaryName = "/tools/runc"`}},
		{
			name: "worker", h: hosts[1], file: "kubelet.yaml", has: []string{"cgroupsPerQOS: false", "protectKernelDefaults: true"},
			hasNot: []string{"registerWithTaints", "nodeLeaseDurationSeconds"},
		},
		{
			name: "control plane", h: hosts[0], c: Config{NodeMonitorGracePeriod: 8 * time.Second}, limits: true, file: "kubelet.yaml",
			has: []string{"cgroupsPerQOS: true", "node-role.kubernetes.io/control-plane, effect: NoSchedule", "nodeLeaseDurationSeconds: 8"},
		},
		{name: "proxy", h: hosts[1], file: "kube-proxy.yaml", has: []string{"mode: nftables", "hostnameOverride: w1"}, hasNot: []string{"minSyncPeriod"}},
		{
			name: "quick proxy", h: hosts[1], c: Config{ProxyMode: ProxyIPTables, ProxyMinSync: 10 * time.Millisecond}, file: "kube-proxy.yaml",
			has: []string{"mode: iptables\niptables: {minSyncPeriod: 10ms}"},
		},
	} {
		files, err := newNodeConfig(tc.h, tc.c.withDefaults(), tc.limits, "/tools/runc").files()
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		got := string(files[tc.file])
		for _, s := range tc.has {
			if !strings.Contains(got, s) {
				t.Errorf("%s: %s has no %q:\n%s", tc.name, tc.file, s, got)
			}
		}
		for _, s := range tc.hasNot {
			if strings.Contains(got, s) {
				t.Errorf("%s: %s has %q:\n%s", tc.name, tc.file, s, got)
			}
		}
	}
}
