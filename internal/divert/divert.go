// Package divert leads connections to proxied Services to the proxies, and asks the proxies of this node what they serve.
//
// The table `inet holdfast-proxy` translates the destination of a connection to a proxied Service: to a proxy of this node, or for
// what this node and its pods send to another. Its chains are behind the packet filter and ahead of kube-proxy's DNAT, and
// conntrack translates a connection once. The client's address stays, and conntrack makes the way back; only what this node itself
// sends to another node has an address of the link that it leaves by, as kube-proxy does it.
//
// The node ports of these Services would lead past the proxies, so that each node refuses them, at its own addresses.
//
// What another program deletes or changes comes back, and the table of a dead speaker stays for the next one. Where no Service
// is proxied there is no table.
package divert

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Desired is the whole desired state of a Table.
type Desired struct {
	// Diversions, at most one for each port of an address.
	Diversions []lb.Diversion
	// NodePorts that are refused; each once.
	NodePorts []uint16
}

// Table is the table of this node.
type Table struct {
	*nft.Owned[*nft.Static]
	layout *nft.Layout
	// desired is the argument of the last Set.
	desired Desired
}

// New returns a Table, and does not change the kernel. It calls changed when the kernel refuses the table, or takes it again.
func New(log *slog.Logger, changed func()) *Table {
	t := &Table{layout: layout()}
	t.Owned = nft.NewOwned(nft.Config[*nft.Static]{Log: log, Table: t.layout.Table, Image: t.image, Changed: changed})
	return t
}

// Try has the kernel check the table without an effect.
func Try() error { return layout().Try() }

// Set makes the kernel do exactly this. It never fails: Failed reports whether the kernel refuses it, and Run asks again.
func (t *Table) Set(d Desired) {
	t.Lock()
	defer t.Unlock()
	if t.Settled() && slices.Equal(d.Diversions, t.desired.Diversions) && slices.Equal(d.NodePorts, t.desired.NodePorts) {
		return
	}
	t.desired = d
	_ = t.Apply() // it logs, and Run retries
}

// Failed reports whether the kernel refuses what was set last.
func (t *Table) Failed() bool {
	t.Lock()
	defer t.Unlock()
	return t.Failure() != nil
}

// State returns what was set last, and whether the kernel does it.
func (t *Table) State() any {
	t.Lock()
	defer t.Unlock()
	ok, _ := t.Enforced()
	return struct {
		Desired
		InForce bool
	}{t.desired, ok}
}

// Remove deletes the table. A concurrent Run does not restore it.
func (t *Table) Remove() error {
	t.Lock()
	t.desired = Desired{}
	t.Unlock()
	if err := t.Owned.Remove(); err != nil {
		return fmt.Errorf("remove the way to the proxies: %w", err)
	}
	return nil
}

// image is the table of what is desired; none for nothing.
func (t *Table) image(*nft.Static) *nft.Static {
	if len(t.desired.Diversions)+len(t.desired.NodePorts) == 0 {
		return nil
	}
	return &nft.Static{Layout: t.layout, Elements: elements(t.desired)}
}
