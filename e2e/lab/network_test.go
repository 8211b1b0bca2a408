package lab

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"golang.org/x/sys/unix"
)

// The kernel takes 15 bytes of a link's name, and no address may be given twice.
func TestPlanOfLargestLab(t *testing.T) {
	pool := netip.MustParsePrefix("172.30.0.128/26")
	seen := make(map[netip.Addr]string)
	for _, h := range plan(Config{Workers: maxWorkers}) {
		for _, l := range h.Legs {
			if len(l.Port) > 15 {
				t.Errorf("port %s of host %s is too long", l.Port, h.Name)
			}
			if pool.Contains(l.V4.Addr()) {
				t.Errorf("host %s has %s of the pools' range", h.Name, l.V4.Addr())
			}
			for _, a := range []netip.Addr{l.V4.Addr(), l.V6.Addr()} {
				if other, ok := seen[a]; ok {
					t.Errorf("hosts %s and %s share %s", other, h.Name, a)
				}
				seen[a] = h.Name
			}
		}
	}
}

func TestCableBatchFixesMAC(t *testing.T) {
	h, err := plan(Config{Workers: 1}).Find("client")
	if err != nil {
		t.Fatal(err)
	}
	want := "link add lan-client type veth peer name eth0 address 02:00:00:00:00:64 netns hflab-client\nlink set " +
		"lan-client master lan up\n"
	if got := cableBatch(h); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A network plugin makes the routes between pods, and needs a prefix of every node.
func TestNetworkOfPods(t *testing.T) {
	for _, tc := range []struct {
		network string
		isLabs  bool
	}{{"", true}, {"flannel-vxlan", false}, {"flannel-host-gw", false}} {
		c := Config{Network: tc.network, Workers: 1}.withDefaults()
		hosts := plan(c)
		v4, v6 := hosts[1].Pods()
		batch := hostBatch(hosts[0], hosts, c.plugin().IsLabs)
		for _, route := range []string{"route add " + v4.String(), "route add " + v6.String()} {
			if strings.Contains(batch, route) != tc.isLabs {
				t.Errorf("network %q: the lab's routes are\n%s", tc.network, batch)
			}
		}
		if !strings.Contains(batch, "route add 0.0.0.0/0") {
			t.Errorf("network %q: no default route in\n%s", tc.network, batch)
		}
		args := controllerManagerArgs(c)
		if slices.Contains(args, "--allocate-node-cidrs=true") == tc.isLabs ||
			slices.Contains(args, "--cluster-cidr="+podRanges) == tc.isLabs {
			t.Errorf("network %q: %q", tc.network, args)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    Config
		ok   bool
	}{
		{"default", Config{}, true},
		{"iptables", Config{ProxyMode: ProxyIPTables, Workers: 80}, true},
		{"plugin", Config{Network: "flannel-vxlan"}, true},
		{"unknown network", Config{Network: "none"}, false},
		{"unknown proxy", Config{ProxyMode: "ipvs"}, false},
		{"too many workers", Config{Workers: 81}, false},
		{"negative workers", Config{Workers: -1}, false},
		{"grace too short", Config{NodeMonitorGracePeriod: 1e9}, false},
		{"negative sync", Config{ProxyMinSync: -1}, false},
	} {
		if err := tc.c.withDefaults().validate(); (err == nil) != tc.ok {
			t.Errorf("%s: error %v, want ok %v", tc.name, err, tc.ok)
		}
	}
}

// TestNetnsBesideOthers: the lab's namespaces go, and the namespaces of others stay, if another program ran "ip netns
// add" while the lab was up. It runs in a mount namespace of its own, with an empty /run.
func TestNetnsBesideOthers(t *testing.T) {
	const inside = "HOLDFAST_LAB_NETNS_TEST"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if _, failed := err.(*exec.ExitError); err != nil && !failed {
			t.Skipf("no mount namespace: %v", err)
		} else if failed {
			t.Error("failed inside")
		}
		return
	}
	if err := unix.Mount("none", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) {
		t.Helper()
		if _, err := output(t.Context(), "", name, args...); err != nil {
			t.Fatal(err)
		}
	}
	if err := enterNetnsDir(); err != nil {
		t.Fatal(err)
	}
	if err := newNetns(t.Context(), netnsPrefix+"test", nil); err != nil {
		t.Fatal(err)
	}
	run("ip", "netns", "add", "others")
	names, err := labNetns()
	if err != nil || len(names) != 1 {
		t.Fatalf("%q, %v", names, err)
	}
	if err := deleteNetns(names[0]); err != nil {
		t.Error(err)
	}
	run("ip", "netns", "exec", "others", "true")
	leaveNetnsDir()
	if names, err := os.ReadDir(netnsDir); err != nil || len(names) != 1 {
		t.Errorf("%q, %v: another's namespace is gone", names, err)
	}
	run("ip", "netns", "delete", "others")
	leaveNetnsDir()
	if _, err := os.Stat(netnsDir); !os.IsNotExist(err) {
		t.Errorf("the directory stays: %v", err)
	}
}

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
		{name: "runtime with controllers", h: hosts[1], limits: true, file: "containerd.toml",
			has: []string{`BinaryName = "/tools/runc"`}},
		{
			name: "worker", h: hosts[1], file: "kubelet.yaml", has: []string{
				"cgroupsPerQOS: false", "protectKernelDefaults: true",
			},
			hasNot: []string{"registerWithTaints", "nodeLeaseDurationSeconds"},
		},
		{
			name: "control plane", h: hosts[0], c: Config{NodeMonitorGracePeriod: 8 * time.Second}, limits: true,
			file: "kubelet.yaml",
			has: []string{
				"cgroupsPerQOS: true", "node-role.kubernetes.io/control-plane, effect: NoSchedule",
				"nodeLeaseDurationSeconds: 8",
			},
		},
		{name: "proxy", h: hosts[1], file: "kube-proxy.yaml", has: []string{"mode: nftables", "hostnameOverride: w1"},
			hasNot: []string{"minSyncPeriod"}},
		{
			name: "quick proxy", h: hosts[1], c: Config{ProxyMode: ProxyIPTables, ProxyMinSync: 10 * time.Millisecond},
			file: "kube-proxy.yaml",
			has:  []string{"mode: iptables\niptables: {minSyncPeriod: 10ms}"},
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
