package lab

import (
	"path/filepath"

	"github.com/holdfast-lb/holdfast/e2e/lab/hostinit"
	"github.com/holdfast-lb/holdfast/e2e/lab/router"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// prepareRouter writes a router's files and returns its specification.
func (l *Lab) prepareRouter(h wire.Host) (*hostinit.Spec, error) {
	if h.Number == 1 {
		return l.prepareFRR(h)
	}
	conf, err := router.BIRD(h, l.Plan)
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

func (l *Lab) prepareFRR(h wire.Host) (*hostinit.Spec, error) {
	conf, err := router.FRR(h, l.Plan)
	if err != nil {
		return nil, err
	}
	spec := l.baseSpec(h)
	spec.Binds = append(spec.Binds, hostinit.Bind{Source: "frr", Target: "/etc/frr"})
	spec.Dirs = []hostinit.Dir{{Path: "/run/frr", Owner: "frr"}, {Path: "/etc/frr", Owner: "frr"}}
	// An empty vtysh.conf silences a warning.
	if err := writeFiles(filepath.Join(l.hostDir(h), "frr"),
		map[string][]byte{"frr.conf": conf, "vtysh.conf": nil}); err != nil {
		return nil, err
	}
	for _, d := range router.Daemons() {
		spec.Services = append(
			spec.Services,
			hostinit.Service{Name: d.Name, Gate: d.Needs, Env: systemEnv(), Argv: d.Argv},
		)
	}
	return spec, nil
}
