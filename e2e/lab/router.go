package lab

import (
	"fmt"
	"path/filepath"

	"github.com/holdfast-lb/holdfast/e2e/lab/hostinit"
)

// routerConfig is what a router's configuration is rendered from.
type routerConfig struct {
	Name           string
	AS             int
	RouterID       string
	Range4, Range6 string // where nodes may peer from
}

func newRouterConfig(h host) routerConfig {
	l := h.Legs[0]
	as := ASRouter1
	if h.Number == 2 {
		as = ASRouter2
	}
	return routerConfig{
		Name: h.Name, AS: as, RouterID: l.V4.Addr().String(),
		Range4: l.V4.Masked().String(), Range6: l.V6.Masked().String(),
	}
}

// prepareRouter writes a router's files and returns its specification: r1 is
// FRR, r2 is BIRD, so that no test depends on one implementation.
func (l *Lab) prepareRouter(h host) (*hostinit.Spec, error) {
	if h.Number == 1 {
		return l.prepareFRR(h)
	}
	conf, err := render("bird.conf", newRouterConfig(h))
	if err != nil {
		return nil, err
	}
	spec := l.baseSpec(h)
	spec.Dirs = []hostinit.Dir{{Path: "/run/bird"}}
	spec.Files["/etc/bird/bird.conf"] = string(conf)
	bird, err := systemProgram("bird")
	if err != nil {
		return nil, err
	}
	spec.Services = []hostinit.Service{{
		Name: "bird", Env: systemEnv(),
		Argv: []string{bird, "-f", "-c", "/etc/bird/bird.conf", "-s", "/run/bird/bird.ctl"},
	}}
	return spec, nil
}

func (l *Lab) prepareFRR(h host) (*hostinit.Spec, error) {
	conf, err := render("frr.conf", newRouterConfig(h))
	if err != nil {
		return nil, err
	}
	spec := l.baseSpec(h)
	spec.Binds = append(spec.Binds, hostinit.Bind{Source: "frr", Target: "/etc/frr"})
	spec.Dirs = []hostinit.Dir{{Path: "/run/frr", Owner: "frr"}, {Path: "/etc/frr", Owner: "frr"}}
	// An empty vtysh.conf silences a warning.
	if err := writeFiles(filepath.Join(l.hostDir(h), "frr"), map[string][]byte{"frr.conf": conf, "vtysh.conf": nil}); err != nil {
		return nil, err
	}
	for _, d := range []struct {
		name string
		args []string
	}{
		{"zebra", []string{"-A", "127.0.0.1"}},
		{"staticd", []string{"-A", "127.0.0.1"}},
		{"bfdd", []string{"-A", "127.0.0.1"}},
		{"bgpd", []string{"-A", "127.0.0.1", "-p", "179"}},
	} {
		spec.Services = append(spec.Services, hostinit.Service{
			Name: d.name, Env: systemEnv(),
			Argv: append([]string{fmt.Sprintf("/usr/lib/frr/%s", d.name), "-f", "/etc/frr/frr.conf", "--log", "stdout"}, d.args...),
		})
	}
	return spec, nil
}
