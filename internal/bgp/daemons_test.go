package bgp

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const frrDir = "/usr/lib/frr/"

// daemon is a real router in its own namespace.
type daemon interface {
	// route returns the router's routes of a prefix, in one line; empty for none.
	route(prefix string) string
	// established is the number of sessions that are up.
	established() int
}

// start runs a program in a namespace until the test ends, and shows its output if the test fails.
func start(t *testing.T, ns *nstest.NS, name string, args ...string) {
	t.Helper()
	// A /var/tmp of its own: FRR leaves a directory for crash logs there.
	private := []string{"--mount", "--propagation", "private", "sh", "-c", `mount -t tmpfs tmpfs /var/tmp && exec "$0" "$@"`, name}
	cmd := ns.Command("unshare", append(private, args...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait() // killed by the end of the test
		if t.Failed() {
			t.Logf("output of %s:\n%s", name, out.String())
		}
	})
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

// frr is FRRouting: zebra and bgpd.
type frr struct {
	ns  *nstest.NS
	dir string
}

// startFRR starts it, with arguments for bgpd.
func startFRR(t *testing.T, ns *nstest.NS, config string, bgpd ...string) frr {
	t.Helper()
	needs(t, frrDir+"zebra", frrDir+"bgpd", "vtysh")
	f := frr{ns, frrOwned(t)}
	conf := filepath.Join(f.dir, "frr.conf")
	write(t, conf, config) // zebra warns about bgpd's lines and continues
	write(t, filepath.Join(f.dir, "vtysh.conf"), "")
	for _, name := range []string{"zebra", "bgpd"} {
		own := bgpd
		if name == "zebra" {
			// Without this zebra deletes an IPv6 route before it replaces it.
			own = []string{"--v6-rr-semantics"}
		}
		start(t, ns, frrDir+name, append(own, "-f", conf, "-z", filepath.Join(f.dir, "zserv"), "--vty_socket", f.dir,
			"-i", filepath.Join(f.dir, name+".pid"), "-P", "0", "--log", "stdout")...) // -P 0: no listener for the console
		nstest.Until(t, patience, name+" listens to its console", func() bool {
			_, err := os.Stat(filepath.Join(f.dir, name+".vty"))
			return err == nil
		})
	}
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

// show runs a command of the console and reads its JSON.
func (f frr) show(command string, into any) {
	out, err := f.ns.Command("vtysh", "--vty_socket", f.dir, "--config_dir", f.dir, "-c", command+" json").Output()
	if err == nil {
		// Output that is not JSON means that there is nothing, and leaves into empty.
		_ = json.Unmarshal(out, into)
	}
}

func (f frr) route(prefix string) string {
	type text struct{ String string }
	var answer struct {
		Paths []struct {
			AsPath                    text `json:"aspath"`
			Community, LargeCommunity text
			Nexthops                  []struct{ IP, Scope string }
		}
	}
	f.show("show bgp "+family(prefix)+" unicast "+prefix, &answer)
	if len(answer.Paths) != 1 {
		return ""
	}
	p := answer.Paths[0]
	via := ""
	for _, hop := range p.Nexthops {
		if hop.Scope != "link-local" {
			via += hop.IP
		}
	}
	return fmt.Sprintf("via %s path %s communities %s large %s", via, p.AsPath.String, p.Community.String, p.LargeCommunity.String)
}

// configure enters lines into the console's configuration.
func (f frr) configure(t *testing.T, lines ...string) {
	t.Helper()
	args := []string{"--vty_socket", f.dir, "--config_dir", f.dir, "-c", "configure terminal"}
	for _, line := range lines {
		args = append(args, "-c", line)
	}
	if out, err := f.ns.Command("vtysh", args...).CombinedOutput(); err != nil {
		t.Fatalf("configure FRR: %v\n%s", err, out)
	}
}

func (f frr) established() int {
	n := 0
	for _, family := range []string{"ipv4", "ipv6"} {
		var answer struct {
			Peers map[string]struct{ State string }
		}
		f.show("show bgp "+family+" unicast summary", &answer)
		for _, p := range answer.Peers {
			if p.State == "Established" {
				n++
			}
		}
	}
	return n
}

func family(prefix string) string {
	if strings.Contains(prefix, ":") {
		return "ipv6"
	}
	return "ipv4"
}

// bird is the BIRD Internet Routing Daemon.
type bird struct {
	ns           *nstest.NS
	socket, conf string
}

func startBIRD(t *testing.T, ns *nstest.NS, config string) bird {
	t.Helper()
	needs(t, "bird", "birdc")
	dir := t.TempDir()
	conf := filepath.Join(dir, "bird.conf")
	b := bird{ns, filepath.Join(dir, "socket"), conf}
	write(t, conf, config)
	start(t, ns, "bird", "-f", "-c", conf, "-s", b.socket, "-P", filepath.Join(dir, "pid"))
	nstest.Until(t, patience, "bird listens to its console", func() bool {
		_, err := os.Stat(b.socket)
		return err == nil
	})
	return b
}

func (b bird) show(command string) string {
	out, err := b.ns.Command("birdc", "-s", b.socket, command).Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// configure replaces the configuration.
func (b bird) configure(t *testing.T, config string) {
	t.Helper()
	write(t, b.conf, config)
	if out := b.show("configure"); !strings.Contains(out, "Reconfigured") && !strings.Contains(out, "Reconfiguration in progress") {
		t.Fatalf("configure BIRD: %s", out)
	}
}

var birdAttribute = regexp.MustCompile(`BGP\.(as_path|next_hop|local_pref|community|large_community|med): ?(.*)`)

func (b bird) route(prefix string) string {
	out := b.show("show route all for " + prefix)
	if !strings.Contains(out, prefix) {
		return ""
	}
	values := map[string]string{}
	for _, m := range birdAttribute.FindAllStringSubmatch(out, -1) {
		values[m[1]] = m[2]
	}
	via, _, _ := strings.Cut(values["next_hop"], " ") // without the link-local one
	return fmt.Sprintf("via %s path %s communities %s large %s preference %s",
		via, values["as_path"], values["community"], values["large_community"], values["local_pref"])
}

func (b bird) established() int { return strings.Count(b.show("show protocols"), "Established") }
