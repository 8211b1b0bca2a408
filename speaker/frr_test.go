package main

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const frrDir = "/usr/lib/frr/"

// frr is FRRouting in a namespace: zebra, bgpd and bfdd.
type frr struct {
	t         *testing.T
	ns        *nstest.NS
	dir, conf string
	// bgpd are arguments of bgpd.
	bgpd    []string
	running []*exec.Cmd
}

func newFRR(t *testing.T, ns *nstest.NS, config string, bgpd ...string) *frr {
	t.Helper()
	account, err := user.Lookup("frr") // to which FRR always switches
	if _, missing := os.Stat(frrDir + "bgpd"); err != nil || missing != nil {
		t.Skip("FRR is not installed")
	}
	dir, err := os.MkdirTemp("", "frr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	uid, err1 := strconv.Atoi(account.Uid)
	gid, err2 := strconv.Atoi(account.Gid)
	if err := errors.Join(err1, err2, os.Chown(dir, uid, gid)); err != nil {
		t.Skipf("FRR needs a directory of its user's: %v", err)
	}
	f := &frr{t: t, ns: ns, dir: dir, conf: filepath.Join(dir, "frr.conf"), bgpd: bgpd}
	for name, text := range map[string]string{"frr.conf": config, "vtysh.conf": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f.start()
	t.Cleanup(f.kill)
	return f
}

func (f *frr) start() {
	f.t.Helper()
	for _, name := range []string{"zebra", "bfdd", "bgpd"} {
		console := filepath.Join(f.dir, name+".vty")
		_ = os.Remove(console) // of the process before
		args := []string{"--mount", "--propagation", "private", "sh", "-c", `mount -t tmpfs tmpfs /var/tmp && exec "$0" "$@"`,
			frrDir + name, "-f", f.conf, "-z", filepath.Join(f.dir, "zserv"), "--vty_socket", f.dir,
			"-i", filepath.Join(f.dir, name+".pid"), "-P", "0", "--log", "stdout"}
		switch name {
		case "bfdd":
			args = append(args, "--bfdctl", filepath.Join(f.dir, "bfdd.sock"))
		case "bgpd":
			args = append(args, f.bgpd...)
		}
		cmd := f.ns.Command("unshare", args...)
		cmd.Stdout, cmd.Stderr = f.t.Output(), f.t.Output()
		if err := cmd.Start(); err != nil {
			f.t.Fatal(err)
		}
		f.running = append(f.running, cmd)
		nstest.Until(f.t, patience, name+" listens to its console", func() bool {
			_, err := os.Stat(console)
			return err == nil
		})
	}
}

// kill ends all as a power failure does.
func (f *frr) kill() {
	for _, cmd := range f.running {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	f.running = nil
}

// show runs commands of the console.
func (f *frr) show(commands ...string) string {
	args := []string{"--vty_socket", f.dir, "--config_dir", f.dir}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	out, _ := f.ns.Command("vtysh", args...).CombinedOutput()
	return strings.TrimSpace(string(out))
}
