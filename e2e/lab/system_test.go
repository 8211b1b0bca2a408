package lab

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

const hybrid = `25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
40 25 0:4 net:[1] /run/holdfast-lab/a rw shared:3 - nsfs nsfs rw
41 40 0:4 net:[2] /run/holdfast-lab/a/b rw shared:3 - nsfs nsfs rw
42 25 0:4 net:[2] /run/holdfast-labour rw shared:3 - nsfs nsfs rw
`

func TestCgroup2Mount(t *testing.T) {
	for _, tc := range []struct{ mountinfo, want string }{
		{hybrid, "/sys/fs/cgroup/unified"},
		{"30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n", "/sys/fs/cgroup"},
		{"25 1 254:0 / / rw - ext4 /dev/vda rw\n", ""},
	} {
		got, err := cgroup2Mount(strings.NewReader(tc.mountinfo))
		if got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("got %q, %v; want %q", got, err, tc.want)
		}
	}
}

func TestMountsBelow(t *testing.T) {
	got, err := mountsBelow(strings.NewReader(hybrid), "/run/holdfast-lab")
	if want := []string{"/run/holdfast-lab/a/b", "/run/holdfast-lab/a"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestWaitForReportsLastFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cause := errors.New("cause")
	err := waitFor(ctx, readyWait, func() error {
		cancel()
		return cause
	})
	if !errors.Is(err, cause) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the cause and the cancellation", err)
	}
}

func TestNotReady(t *testing.T) {
	var list nodeList
	list.Items = make([]struct {
		Metadata struct{ Name string }
		Status   struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}, 2)
	list.Items[0].Metadata.Name, list.Items[1].Metadata.Name = "cp", "w1"
	list.Items[0].Status.Conditions = []struct{ Type, Status, Message string }{{Type: "Ready", Status: "True"}}
	list.Items[1].Status.Conditions = []struct{ Type, Status, Message string }{{Type: "Ready", Status: "False"}}
	if got := list.notReady([]string{"cp", "w1", "w2"}); !slices.Equal(got, []string{"w1", "w2"}) {
		t.Errorf("got %q, want w1 and w2", got)
	}
}

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
