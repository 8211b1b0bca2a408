package lab

import (
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

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
	want := "link add lan-client type veth peer name eth0 address 02:00:00:00:00:64 netns hflab-client\nlink set lan-client master lan up\n"
	if got := cableBatch(h); got != want {
		t.Errorf("got %q, want %q", got, want)
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

// TestNetnsBesideOthers: the lab's namespaces go, and the namespaces of others stay, if another program ran "ip netns add" while the lab was
// up. It runs in a mount namespace of its own, with an empty /run.
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
