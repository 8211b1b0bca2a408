package bfd

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const (
	frrDir = "/usr/lib/frr/"
	// patience is for how long tests wait on a machine that has much else to do.
	patience = 30 * time.Second
)

// program is a running process of a router.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
}

// start runs a program in a namespace until the test ends, and shows its output if the test fails. Its process group is
// its own: nsenter and unshare replace themselves, so the signals reach the program.
func start(t *testing.T, ns *nstest.NS, name string, args ...string) *program {
	t.Helper()
	// A /var/tmp of its own: FRR leaves a directory for crash logs there.
	private := []string{"--mount", "--propagation", "private", "sh", "-c", `mount -t tmpfs tmpfs /var/tmp && exec "$0" "$@"`, name}
	cmd := ns.Command("unshare", append(private, args...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	p := &program{t, cmd}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("output of %s:\n%s", name, out.String())
		}
	})
	return p
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the program as a crash does.
func (p *program) kill() {
	p.signal(syscall.SIGKILL)
	_ = p.cmd.Wait()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
}

// daemon is a real router.
type daemon interface {
	// up returns whether its session with an address is up.
	up(address string) bool
	// restart ends its BFD as a crash does, and starts it again.
	restart()
	signal(syscall.Signal)
}

// frr is FRRouting: zebra and bfdd.
type frr struct {
	*program
	ns        *nstest.NS
	dir, conf string
}

func startFRR(t *testing.T, ns *nstest.NS, config string) *frr {
	t.Helper()
	needs(t, frrDir+"zebra", frrDir+"bfdd", "vtysh")
	f := &frr{ns: ns, dir: frrOwned(t)}
	f.conf = filepath.Join(f.dir, "frr.conf")
	write(t, f.conf, config)
	write(t, filepath.Join(f.dir, "vtysh.conf"), "")
	f.start(t, "zebra")
	f.program = f.start(t, "bfdd", "--bfdctl", filepath.Join(f.dir, "bfdd.sock"))
	return f
}

func (f *frr) start(t *testing.T, name string, own ...string) *program {
	t.Helper()
	console := filepath.Join(f.dir, name+".vty")
	_ = os.Remove(console) // of the process before
	p := start(t, f.ns, frrDir+name, append(own, "-f", f.conf, "-z", filepath.Join(f.dir, "zserv"), "--vty_socket", f.dir,
		"-i", filepath.Join(f.dir, name+".pid"), "-P", "0", "--log", "stdout")...) // -P 0: no listener for the console
	nstest.Until(t, patience, name+" listens to its console", func() bool {
		_, err := os.Stat(console)
		return err == nil
	})
	return p
}

// frrOwned is a directory of FRR's user, to which FRR always switches.
func frrOwned(t *testing.T) string {
	t.Helper()
	account, err := user.Lookup("frr")
	if err != nil {
		t.Skipf("FRR has no user: %v", err)
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
	return dir
}

// frrPeer is what FRR shows of a session.
type frrPeer struct {
	Peer, Status, Diagnostic string
	MultiHop                 bool
	RemoteDiagnostic         string `json:"remote-diagnostic"`
	RemoteReceive            int    `json:"remote-receive-interval"`
	RemoteTransmit           int    `json:"remote-transmit-interval"`
	RemoteMultiplier         int    `json:"remote-detect-multiplier"`
}

func (f *frr) command(commands ...string) []byte {
	args := []string{"--vty_socket", f.dir, "--config_dir", f.dir}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	out, err := f.ns.Command("vtysh", args...).Output()
	if err != nil {
		return nil
	}
	return out
}

func (f *frr) peer(address string) frrPeer {
	var all []frrPeer
	_ = json.Unmarshal(f.command("show bfd peers json"), &all) // none while it starts
	for _, p := range all {
		if p.Peer == address {
			return p
		}
	}
	return frrPeer{}
}

func (f *frr) up(address string) bool { return f.peer(address).Status == "up" }

func (f *frr) restart() {
	f.kill()
	f.program = f.start(f.t, "bfdd", "--bfdctl", filepath.Join(f.dir, "bfdd.sock"))
}

// bird is the BIRD Internet Routing Daemon.
type bird struct {
	*program
	ns  *nstest.NS
	dir string
}

func startBIRD(t *testing.T, ns *nstest.NS, config string) *bird {
	t.Helper()
	needs(t, "bird", "birdc")
	b := &bird{ns: ns, dir: t.TempDir()}
	write(t, filepath.Join(b.dir, "bird.conf"), config)
	b.program = b.start(t)
	return b
}

func (b *bird) start(t *testing.T) *program {
	t.Helper()
	socket := filepath.Join(b.dir, "socket")
	_ = os.Remove(socket)
	p := start(t, b.ns, "bird", "-f", "-c", filepath.Join(b.dir, "bird.conf"), "-s", socket, "-P", filepath.Join(b.dir, "pid"))
	nstest.Until(t, patience, "bird listens to its console", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	return p
}

// line is what BIRD shows of a session: address, interface, state, since, interval, timeout.
func (b *bird) line(address string) []string {
	out, err := b.ns.Command("birdc", "-s", filepath.Join(b.dir, "socket"), "show bfd sessions").Output()
	if err != nil {
		return nil
	}
	for l := range strings.Lines(string(out)) {
		if f := strings.Fields(l); len(f) > 2 && f[0] == address {
			return f
		}
	}
	return nil
}

func (b *bird) up(address string) bool {
	l := b.line(address)
	return l != nil && l[2] == "Up"
}

func (b *bird) restart() {
	b.kill()
	b.program = b.start(b.t)
}
