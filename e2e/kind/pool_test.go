package kind

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The script of the README picks addresses of kind's network that Docker gives last.
func TestPoolOfKindsNetwork(t *testing.T) {
	for _, tc := range []struct {
		subnets string
		want    []string // nil means an error
	}{
		{"fc00:f853:ccd:e793::/64\n172.18.0.0/16\n", []string{
			"fc00:f853:ccd:e793::ffff:0/112", "172.18.255.191-172.18.255.254",
		}},
		{"172.18.0.0/16\nfc00:f853:ccd:e793::/64\n", []string{
			"172.18.255.191-172.18.255.254", "fc00:f853:ccd:e793::ffff:0/112",
		}},
		{"192.168.228.0/22\n", []string{"192.168.231.191-192.168.231.254"}},
		{"10.0.5.64/26\n", []string{"10.0.5.111-10.0.5.126"}},
		{"", nil},
	} {
		bin := t.TempDir()
		fake := "#!/bin/sh\ntest \"$1 $2 $3\" = 'network inspect kind' || exit 1\ncat <<'EOF'\n" + tc.subnets + "EOF\n"
		if err := os.WriteFile(filepath.Join(bin, "docker"), []byte(fake), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "../../config/kind/pool.sh")
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
		out, err := cmd.Output()
		if (err == nil) != (tc.want != nil) {
			t.Errorf("%q: %v", tc.subnets, err)
			continue
		}
		var got []string
		for line := range strings.Lines(string(out)) {
			if entry, ok := strings.CutPrefix(line, "    - "); ok && len(got) < len(tc.want) {
				got = append(got, strings.TrimSpace(entry))
			}
		}
		if strings.Join(got, " ") != strings.Join(tc.want, " ") {
			t.Errorf("%q: pool %q, want %q", tc.subnets, got, tc.want)
		}
	}
}
