package nstest

import (
	"path/filepath"
	"strings"
	"testing"
)

// BIRD is the BIRD Internet Routing Daemon.
type BIRD struct {
	*Router
	dir string
}

// StartBIRD starts it.
func StartBIRD(t *testing.T, ns *NS, config string) *BIRD {
	t.Helper()
	b := &BIRD{newRouter(t, ns, "bird", "birdc"), t.TempDir()}
	b.write(b.config(), config)
	b.programs = []*program{{
		argv:    []string{"bird", "-f", "-c", b.config(), "-s", b.socket(), "-P", filepath.Join(b.dir, "pid")},
		console: b.socket(),
	}}
	b.Start()
	return b
}

func (b *BIRD) config() string { return filepath.Join(b.dir, "bird.conf") }
func (b *BIRD) socket() string { return filepath.Join(b.dir, "socket") }

// Show returns what a command of the console shows; nothing while BIRD starts.
func (b *BIRD) Show(command string) string {
	out, err := b.NS.Command("birdc", "-s", b.socket(), command).Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// Configure replaces the configuration of the running router.
func (b *BIRD) Configure(config string) {
	b.t.Helper()
	b.write(b.config(), config)
	if out := b.Show("configure"); !strings.Contains(out, "Reconfigured") && !strings.Contains(out, "Reconfiguration in progress") {
		b.t.Fatalf("configure BIRD: %s", out)
	}
}
