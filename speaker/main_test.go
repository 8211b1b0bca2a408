package main

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"k8s.io/client-go/rest"
)

// TestFlags: a value that cannot work is refused with a sentence, not by a process that ends at each start.
func TestFlags(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "holdfast-system")
	for args, want := range map[string]string{
		"":                               "",
		"--metrics-listen=:7948":         "", // the heartbeats' is of UDP
		"--metrics-listen=:7947":         "--metrics-listen and --members-port both have the port 7947",
		"--metrics-listen=:9218":         "--metrics-listen and --health-listen both have the port 9218",
		"--members-port=9219":            "--debug-listen and --members-port both have the port 9219",
		"--kube-proxy-livez=":            "--kube-proxy-livez:",
		"--data-path=Other":              "",
		"--data-path=KubeProxy":          "",
		"--data-path=other":              `invalid value "other" for flag -data-path: neither KubeProxy nor Other`,
		"--kube-proxy-livez=[::1]:10256": "",
		"--kube-proxy-livez=10256":       "--kube-proxy-livez:",
		"--announce-rate=100000":         "",
		"--announce-rate=99":             "--announce-rate 99 is not between 100 and 100000",
		"--pod-link=wep --exclude-link=mgmt --exclude-link=wg": "",
		"--exclude-link=enp0s31f6-vlan17": "invalid value \"enp0s31f6-vlan17\" for flag " +
			"-exclude-link: not the beginning of a link's name",
		"--announce-rate=100001": "--announce-rate 100001 is not between",
	} {
		var s settings
		err := s.parse(append(strings.Fields(args), "--node-name=w1"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

// TestMetrics: all parts of the speaker count their repairs under one name, which a registry accepts only if they agree
// on everything but the kind.
func TestMetrics(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "holdfast-system")
	var s settings
	must(t, s.parse([]string{"--node-name=w1"}))
	clients, err := k8s.ClientsFor(&rest.Config{Host: "http://192.0.2.3"}, "speaker")
	must(t, err)
	p, err := assemble(clients, s, slog.New(slog.DiscardHandler))
	must(t, err)
	families, err := p.registry().Gather()
	if err != nil {
		t.Error(err)
	}
	for _, f := range families {
		if f.GetName() == "holdfast_repairs_total" && len(f.GetMetric()) < 4 {
			t.Errorf("repairs of %d kinds, want one for every part", len(f.GetMetric()))
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
