package nstest

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Router holds the processes of a router in a namespace. They end with the test.
type Router struct {
	t  *testing.T
	NS *NS
	// dir is the directory of its files, and config the file of its configuration.
	dir, config string
	programs    []*program
}

// program is one process of a router.
type program struct {
	argv []string
	// console is the socket that it creates when it is ready.
	console string
	cmd     *exec.Cmd
}

// newRouter makes a router without programs. It skips the test if one of the needed programs is not installed.
func newRouter(t *testing.T, ns *NS, dir, config string, needed ...string) *Router {
	t.Helper()
	for _, p := range needed {
		_, err := exec.LookPath(p)
		if err != nil {
			t.Skipf("%s is not installed", p)
		}
	}

	r := &Router{
		t:      t,
		NS:     ns,
		dir:    dir,
		config: filepath.Join(dir, "config"),
	}
	r.writeConfig(config)
	t.Cleanup(r.Kill)
	return r
}

// writeConfig writes the configuration.
func (r *Router) writeConfig(config string) {
	r.t.Helper()
	err := os.WriteFile(r.config, []byte(config), 0o644)
	must(r.t, "write the configuration", err)
}

// Start starts its programs, one after the other, and returns when they are ready.
func (r *Router) Start() {
	r.t.Helper()
	for _, p := range r.programs {
		r.start(p)
	}
}

// inOwnTmp runs a command with an empty /var/tmp: FRR leaves a directory for crash logs there. The programs in front of
// the command replace themselves, so signals reach the command.
var inOwnTmp = []string{
	"--mount",
	"--propagation",
	"private",
	"sh",
	"-c",
	`mount -t tmpfs tmpfs /var/tmp && exec "$0" "$@"`,
}

// start starts a program, and waits until it is ready.
func (r *Router) start(p *program) {
	r.t.Helper()
	name := p.argv[0]
	err := os.RemoveAll(p.console)
	must(r.t, "remove the console of the process before", err)

	p.cmd = r.NS.Command("unshare", slices.Concat(inOwnTmp, p.argv)...)
	p.cmd.Stdout = r.t.Output()
	p.cmd.Stderr = r.t.Output()
	err = p.cmd.Start()
	must(r.t, "start "+name, err)

	// Other load of the machine may delay it.
	Until(r.t, 30*time.Second, name+" listens to its console", func() bool {
		_, err := os.Stat(p.console)
		return err == nil
	})
}

// Signal sends a signal to all its programs.
func (r *Router) Signal(s syscall.Signal) {
	r.t.Helper()
	for _, p := range r.programs {
		err := p.cmd.Process.Signal(s)
		must(r.t, "send "+s.String()+" to "+p.argv[0], err)
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

// StartBIRD starts BIRD.
func StartBIRD(t *testing.T, ns *NS, config string) *BIRD {
	t.Helper()
	b := &BIRD{newRouter(t, ns, t.TempDir(), config, "bird", "birdc")}
	pidFile := filepath.Join(b.dir, "pid")
	b.programs = []*program{{
		argv:    []string{"bird", "-f", "-c", b.config, "-s", b.socket(), "-P", pidFile},
		console: b.socket(),
	}}
	b.Start()
	return b
}

// socket returns the socket of the console.
func (b *BIRD) socket() string {
	return filepath.Join(b.dir, "socket")
}

// Show returns the output of a command of the console; nothing while BIRD starts.
func (b *BIRD) Show(command string) string {
	cmd := b.NS.Command("birdc", "-s", b.socket(), command)
	out, _ := cmd.Output()
	return string(out)
}

// Configure replaces the configuration of the running router.
func (b *BIRD) Configure(config string) {
	b.t.Helper()
	b.writeConfig(config)
	out := b.Show("configure")
	isAccepted := strings.Contains(out, "Reconfigured") || strings.Contains(out, "Reconfiguration in progress")
	if !isAccepted {
		b.t.Fatalf("configure BIRD: %s", out)
	}
}

// frrDir is the directory of FRR's daemons, which are not in PATH.
const frrDir = "/usr/lib/frr/"

// FRR is FRRouting: zebra and further daemons.
type FRR struct{ *Router }

// StartFRR starts zebra and further daemons, each given by its name and arguments. All have the same configuration, and
// each warns about lines for the others.
func StartFRR(t *testing.T, ns *NS, config string, daemons ...[]string) *FRR {
	t.Helper()
	// Without this argument zebra deletes an IPv6 route before it replaces it.
	zebra := []string{"zebra", "--v6-rr-semantics"}
	daemons = append([][]string{zebra}, daemons...)
	needed := []string{"vtysh"}
	for _, d := range daemons {
		needed = append(needed, frrDir+d[0])
	}

	f := &FRR{newRouter(t, ns, frrOwned(t), config, needed...)}
	err := os.WriteFile(filepath.Join(f.dir, "vtysh.conf"), nil, 0o644)
	must(t, "write the configuration of vtysh", err)
	for _, d := range daemons {
		f.programs = append(f.programs, f.daemon(d[0], d[1:]))
	}

	f.Start()
	return f
}

// daemon returns the program of a daemon.
func (f *FRR) daemon(name string, args []string) *program {
	argv := []string{
		frrDir + name,
		"-f",
		f.config,
		"-z",
		filepath.Join(f.dir, "zserv"),
		"--vty_socket",
		f.dir,
		"-i",
		filepath.Join(f.dir, name+".pid"),
		"-P", // no port for the console
		"0",
		"--log",
		"stdout",
	}
	argv = append(argv, args...)
	if name == "bfdd" {
		argv = append(argv, "--bfdctl", filepath.Join(f.dir, "bfdd.sock"))
	}

	return &program{
		argv:    argv,
		console: filepath.Join(f.dir, name+".vty"),
	}
}

// frrOwned returns a directory of FRR's user, to which FRR always switches.
func frrOwned(t *testing.T) string {
	t.Helper()
	account, err := user.Lookup("frr")
	if err != nil {
		t.Skipf("FRR has no user: %v", err)
	}

	dir, err := os.MkdirTemp("", "frr")
	must(t, "make a directory", err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	uid, uidErr := strconv.Atoi(account.Uid)
	gid, gidErr := strconv.Atoi(account.Gid)
	chownErr := os.Chown(dir, uid, gid)
	err = errors.Join(uidErr, gidErr, chownErr)
	if err != nil {
		t.Skipf("FRR needs a directory of its user's: %v", err)
	}

	return dir
}

// vtysh runs commands of the console.
func (f *FRR) vtysh(commands []string) ([]byte, error) {
	args := []string{"--vty_socket", f.dir, "--config_dir", f.dir}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	return f.NS.Command("vtysh", args...).CombinedOutput()
}

// Show returns the output of a command of the console. While the daemon starts that is an error message.
func (f *FRR) Show(command string) string {
	out, _ := f.vtysh([]string{command})
	return string(out)
}

// ShowJSON reads the JSON that a command of the console prints. Without JSON there is nothing to show, and it leaves
// into empty.
func (f *FRR) ShowJSON(command string, into any) {
	out, err := f.vtysh([]string{command + " json"})
	if err == nil {
		_ = json.Unmarshal(out, into)
	}
}

// Configure enters lines into the configuration of the running router.
func (f *FRR) Configure(lines ...string) {
	f.t.Helper()
	commands := append([]string{"configure terminal"}, lines...)
	out, err := f.vtysh(commands)
	if err != nil {
		f.t.Fatalf("configure FRR: %v\n%s", err, out)
	}
}
