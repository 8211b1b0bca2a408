package lab

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

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
