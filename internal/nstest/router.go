package nstest

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
)

// Router is the processes of a router in a namespace. They end with the test.
type Router struct {
	t  *testing.T
	NS *NS
	// dir has its files, config among them.
	dir, config string
	programs    []*program
}

// program is one process of a router.
type program struct {
	argv []string
	// console is the socket that it makes when it is ready.
	console string
	cmd     *exec.Cmd
}

// newRouter makes a router without programs.
func newRouter(t *testing.T, ns *NS, dir, config string, needs ...string) *Router {
	t.Helper()
	for _, p := range needs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
	r := &Router{t: t, NS: ns, dir: dir, config: filepath.Join(dir, "config")}
	must(t, "write", os.WriteFile(r.config, []byte(config), 0o644))
	t.Cleanup(r.Kill)
	return r
}

// Start starts its programs, one after the other, and returns when they are ready.
func (r *Router) Start() {
	r.t.Helper()
	for _, p := range r.programs {
		must(r.t, "remove the console of the process before", os.RemoveAll(p.console))
		// A /var/tmp of its own: FRR leaves a directory for crash logs there. nsenter, unshare and sh replace
		// themselves, so signals reach the program.
		args := append(
			[]string{
				"--mount",
				"--propagation",
				"private",
				"sh",
				"-c",
				`mount -t tmpfs tmpfs /var/tmp && exec "$0" "$@"`,
			},
			p.argv...)
		p.cmd = r.NS.Command("unshare", args...)
		p.cmd.Stdout, p.cmd.Stderr = r.t.Output(), r.t.Output()
		must(r.t, "start "+p.argv[0], p.cmd.Start())
		// The machine may have much else to do.
		Until(r.t, 30*time.Second, p.argv[0]+" listens to its console", func() bool {
			_, err := os.Stat(p.console)
			return err == nil
		})
	}
}

// Signal sends a signal to all its programs.
func (r *Router) Signal(s syscall.Signal) {
	r.t.Helper()
	for _, p := range r.programs {
		must(r.t, "send "+s.String()+" to "+p.argv[0], p.cmd.Process.Signal(s))
	}
}

// Kill ends its programs as a power failure does.
func (r *Router) Kill() {
	for _, p := range r.programs {
		if p.cmd != nil && p.cmd.Process != nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		p.cmd = nil
	}
}

// BIRD is the BIRD Internet Routing Daemon.
type BIRD struct{ *Router }

// StartBIRD starts it.
func StartBIRD(t *testing.T, ns *NS, config string) *BIRD {
	t.Helper()
	b := &BIRD{newRouter(t, ns, t.TempDir(), config, "bird", "birdc")}
	b.programs = []*program{{
		argv:    []string{"bird", "-f", "-c", b.config, "-s", b.socket(), "-P", filepath.Join(b.dir, "pid")},
		console: b.socket(),
	}}
	b.Start()
	return b
}

func (b *BIRD) socket() string { return filepath.Join(b.dir, "socket") }

// Show returns what a command of the console shows; nothing while BIRD starts.
func (b *BIRD) Show(command string) string {
	out, _ := b.NS.Command("birdc", "-s", b.socket(), command).Output()
	return string(out)
}

// Configure replaces the configuration of the running router.
func (b *BIRD) Configure(config string) {
	b.t.Helper()
	must(b.t, "write", os.WriteFile(b.config, []byte(config), 0o644))
	if out := b.Show("configure"); !strings.Contains(out, "Reconfigured") &&
		!strings.Contains(out, "Reconfiguration in progress") {
		b.t.Fatalf("configure BIRD: %s", out)
	}
}

// frrDir is where FRR's daemons are, which are not in PATH.
const frrDir = "/usr/lib/frr/"

// FRR is FRRouting: zebra and other daemons of its.
type FRR struct{ *Router }

// StartFRR starts zebra and further daemons, each given by its name and arguments, with one configuration for all.
func StartFRR(t *testing.T, ns *NS, config string, daemons ...[]string) *FRR {
	t.Helper()
	// Without this argument zebra deletes an IPv6 route before it replaces it.
	daemons = append([][]string{{"zebra", "--v6-rr-semantics"}}, daemons...)
	needs := []string{"vtysh"}
	for _, d := range daemons {
		needs = append(needs, frrDir+d[0])
	}
	f := &FRR{newRouter(t, ns, frrOwned(t), config, needs...)} // each daemon warns about the lines of others
	must(t, "write", os.WriteFile(filepath.Join(f.dir, "vtysh.conf"), nil, 0o644))
	for _, d := range daemons {
		name := d[0]
		// -P 0: no listener for the console
		argv := append(
			[]string{frrDir + name, "-f", f.config, "-z", filepath.Join(f.dir, "zserv"), "--vty_socket", f.dir,
				"-i", filepath.Join(f.dir, name+".pid"), "-P", "0", "--log", "stdout"},
			d[1:]...)
		if name == "bfdd" {
			argv = append(argv, "--bfdctl", filepath.Join(f.dir, "bfdd.sock"))
		}
		f.programs = append(f.programs, &program{argv: argv, console: filepath.Join(f.dir, name+".vty")})
	}
	f.Start()
	return f
}

// frrOwned is a directory of FRR's user, to which FRR always switches.
func frrOwned(t *testing.T) string {
	t.Helper()
	account, err := user.Lookup("frr")
	if err != nil {
		t.Skipf("FRR has no user: %v", err)
	}
	dir, err := os.MkdirTemp("", "frr")
	must(t, "make a directory", err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	uid, err1 := strconv.Atoi(account.Uid)
	gid, err2 := strconv.Atoi(account.Gid)
	if err := errors.Join(err1, err2, os.Chown(dir, uid, gid)); err != nil {
		t.Skipf("FRR needs a directory of its user's: %v", err)
	}
	return dir
}

func (f *FRR) vtysh(commands []string) ([]byte, error) {
	args := []string{"--vty_socket", f.dir, "--config_dir", f.dir}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	return f.NS.Command("vtysh", args...).CombinedOutput()
}

// Show returns what a command of the console shows, which is an error's text while the daemon starts.
func (f *FRR) Show(command string) string {
	out, _ := f.vtysh([]string{command})
	return string(out)
}

// ShowJSON reads the JSON that a command of the console shows. What is not JSON means that there is nothing, and leaves
// into empty.
func (f *FRR) ShowJSON(command string, into any) {
	if out, err := f.vtysh([]string{command + " json"}); err == nil {
		_ = json.Unmarshal(out, into)
	}
}

// Configure enters lines into the configuration of the running router.
func (f *FRR) Configure(lines ...string) {
	f.t.Helper()
	if out, err := f.vtysh(append([]string{"configure terminal"}, lines...)); err != nil {
		f.t.Fatalf("configure FRR: %v\n%s", err, out)
	}
}
