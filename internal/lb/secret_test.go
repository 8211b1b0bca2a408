package lb

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// Nothing that formats a peer shows its password.
func TestSecret(t *testing.T) {
	p := Peer{Name: "r", Password: "Geheim-7"}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", p)
		fmt.Fprintf(&out, verb+"\n", &p.Password)
		fmt.Fprintf(&out, verb+"\n", p.Password)
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("peer", "peer", p, "password", p.Password)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("peer", "peer", p, "password", p.Password)
	if err := json.NewEncoder(&out).Encode([]any{p, p.Password}); err != nil {
		t.Fatal(err)
	}
	for _, leak := range []string{string(p.Password), fmt.Sprintf("%x", string(p.Password))} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("%q is in\n%s", leak, out.String())
		}
	}
	if got := fmt.Sprint(Secret("")); got != "" {
		t.Errorf("no secret shows as %q", got)
	}
}
