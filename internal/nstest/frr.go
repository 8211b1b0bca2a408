package nstest

import (
	"encoding/json"
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"
)

// frrDir is where FRR's daemons are, which are not in PATH.
const frrDir = "/usr/lib/frr/"

// FRR is FRRouting: zebra and other daemons of its.
type FRR struct {
	*Router
	dir string
}

// StartFRR starts zebra and further daemons, each given by its name and arguments, with one configuration for all.
func StartFRR(t *testing.T, ns *NS, config string, daemons ...[]string) *FRR {
	t.Helper()
	// Without this argument zebra deletes an IPv6 route before it replaces it.
	daemons = append([][]string{{"zebra", "--v6-rr-semantics"}}, daemons...)
	needs := []string{"vtysh"}
	for _, d := range daemons {
		needs = append(needs, frrDir+d[0])
	}
	f := &FRR{dir: frrOwned(t)}
	f.Router = newRouter(t, ns, needs...)
	f.SetConfig(config)
	f.write(filepath.Join(f.dir, "vtysh.conf"), "")
	for _, d := range daemons {
		name := d[0]
		// -P 0: no listener for the console
		argv := append([]string{frrDir + name, "-f", f.config(), "-z", filepath.Join(f.dir, "zserv"), "--vty_socket", f.dir,
			"-i", filepath.Join(f.dir, name+".pid"), "-P", "0", "--log", "stdout"}, d[1:]...)
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

func (f *FRR) config() string { return filepath.Join(f.dir, "frr.conf") }

// SetConfig replaces the configuration that it reads when it starts. Each daemon warns about the lines of others.
func (f *FRR) SetConfig(text string) {
	f.t.Helper()
	f.write(f.config(), text)
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

// ShowJSON reads the JSON that a command of the console shows. What is not JSON means that there is nothing, and leaves into
// empty.
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
