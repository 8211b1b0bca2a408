// Package router writes the configuration of the routers beside a test cluster: r1 is FRR and r2 is
// BIRD, so that no test depends on one implementation.
package router

import (
	"bytes"
	"embed"
	"fmt"
	"text/template"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// Autonomous systems of the routers.
const (
	AS1 = 64512
	AS2 = 64513
)

// config is what a router's configuration is rendered from.
type config struct {
	Name           string
	AS             int
	RouterID       string
	Range4, Range6 string // where nodes may peer from
	Nodes          wire.Plan
}

//go:embed files
var files embed.FS

// FRR returns the configuration of FRR's daemons on a host. It names the nodes: with neighbors from a range FRR 8.4.4
// reads memory that it has freed, and dies at times, when a node does not come back within its restart time.
func FRR(h wire.Host, plan wire.Plan) ([]byte, error) { return render("frr.conf", h, plan, AS1) }

// BIRD returns the configuration of BIRD on a host. It takes the nodes from a range.
func BIRD(h wire.Host, plan wire.Plan) ([]byte, error) { return render("bird.conf", h, plan, AS2) }

// Daemon is one process of FRR.
type Daemon struct {
	Name string
	Argv []string
	// Needs is a file that must exist before it starts; empty for none.
	Needs string
}

// Daemons are the processes of FRR, which read /etc/frr/frr.conf.
func Daemons() []Daemon {
	var out []Daemon
	for _, d := range []struct {
		name string
		args []string
	}{
		{"zebra", []string{"-A", "127.0.0.1"}},
		{"staticd", []string{"-A", "127.0.0.1"}},
		{"bfdd", []string{"-A", "127.0.0.1"}},
		{"bgpd", []string{"-A", "127.0.0.1", "-p", "179"}},
	} {
		// of zebra: bgpd looks for it again after 10 s only, and loses sessions of BFD meanwhile
		needs := "/run/frr/zserv.api"
		if d.name == "zebra" {
			needs = ""
		}
		out = append(
			out,
			Daemon{
				d.name,
				append([]string{"/usr/lib/frr/" + d.name, "-f", "/etc/frr/frr.conf", "--log", "stdout"}, d.args...),
				needs,
			},
		)
	}
	return out
}

// render fills in one of the embedded files. Nodes peer from the network of the host's first link.
func render(name string, h wire.Host, plan wire.Plan, as int) ([]byte, error) {
	l := h.Legs[0]
	t, err := template.New(name).Option("missingkey=error").ParseFS(files, "files/"+name)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	var b bytes.Buffer
	err = t.Execute(&b, config{
		Name: h.Name, AS: as, RouterID: l.V4.Addr().String(),
		Range4: l.V4.Masked().String(), Range6: l.V6.Masked().String(),
		Nodes: plan.Nodes(),
	})
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", name, err)
	}
	return b.Bytes(), nil
}
