// Package headstart leads connections to the endpoints of new addresses until kube-proxy does. kube-proxy programs a new
// address when it next synchronizes, a second later by default, and clients whose first SYN is lost wait for another
// second.
//
// The table `inet holdfast-headstart` translates the destination of connections that no other program has translated:
// its chains are behind kube-proxy's (-100), and conntrack translates a connection once. So kube-proxy takes over as soon as it can,
// and a connection that was begun here stays what it is. Rules choose one of eight slots of a frontend at random.
//
// The source is translated as kube-proxy would: its mark (0x4000, the default of its masqueradeBit) has the node's firewall
// treat the connection as kube-proxy's, and a chain behind kube-proxy's translates where nobody did.
//
// The content is short-lived: Set names what is new, and the kernel drops what a dead speaker leaves. Nothing is
// repaired; without the table a new address waits for kube-proxy. Without new addresses there is no table.
//
// The package takes no decisions and touches no other table.
package headstart

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"sync"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Table is the table of this node.
type Table struct {
	log *slog.Logger

	mu sync.Mutex
	// starts are those in the kernel.
	starts []lb.Start
	// leads has the addresses of starts, by Service.
	leads map[lead]bool
	// begun: what an earlier process left was removed; failed: the last change failed, and the log has it.
	begun, failed bool
}

// lead is an address of a Service to which connections are led.
type lead struct {
	service lb.Key
	address netip.Addr
}

// New returns a Table. It does not change the kernel.
func New(log *slog.Logger) *Table { return &Table{log: log} }

// Try has the kernel check the table without an effect. It returns the error of a refusal, and names the part that the
// kernel refuses, as nft.Layout.Try does.
func Try() (part string, err error) { return layout().Try() }

// Set has the kernel lead connections to exactly these frontends. It never fails: without it clients wait for kube-proxy.
func (t *Table) Set(starts []lb.Start) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun && !t.failed && (len(starts)+len(t.starts) == 0 || reflect.DeepEqual(starts, t.starts)) {
		return
	}
	err := t.apply(starts)
	if err != nil && !t.failed {
		t.log.Warn("new addresses wait for kube-proxy", "error", err)
	}
	t.failed = err != nil
}

// Leads reports whether the kernel leads connections to each of these addresses of a Service to endpoints.
func (t *Table) Leads(service lb.Key, addresses []netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range addresses {
		if !t.leads[lead{service, a}] {
			return false
		}
	}
	return len(addresses) > 0
}

func (t *Table) apply(starts []lb.Start) error {
	begun := t.begun
	t.begun, t.starts, t.leads = true, nil, map[lead]bool{}
	if len(starts) == 0 {
		return layout().Delete()
	}
	// Another program, or another version, may have made what is there.
	if !begun || commit(starts, false) != nil {
		if err := commit(starts, true); err != nil {
			return fmt.Errorf("serve new addresses: %w", err)
		}
	}
	t.starts = starts
	for _, s := range starts {
		t.leads[lead{s.Service, s.Address}] = true
	}
	return nil
}

// commit makes the table lead to these, whatever its content; fresh: without what is there.
func commit(starts []lb.Start, fresh bool) error {
	l := layout()
	b := l.Batch()
	if fresh {
		b.Remove()
	}
	b.Create()
	b.Flush()
	l.Build(b)
	for _, s := range l.Sets {
		b.FlushSet(s.Name)
	}
	b.AddElements(l, elements(starts))
	return b.Commit()
}

// Remove deletes the table.
func (t *Table) Remove() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.starts, t.leads = nil, nil
	if err := layout().Delete(); err != nil {
		return fmt.Errorf("remove head start: %w", err)
	}
	return nil
}

// elements are those of the sets.
func elements(starts []lb.Start) []nft.SetElement {
	var list []nft.SetElement
	taken := map[string]bool{}
	for _, s := range starts {
		f, key, ok := keyOf(s)
		// Two Services claim one frontend only if another program wrote a status. The kernel would refuse all.
		if !ok || taken[key] {
			continue
		}
		taken[key] = true
		put := func(set, key, value string) {
			list = append(list, nft.SetElement{Set: set + f.Suffix, Element: nft.Element{Key: key, Value: value}})
		}
		if s.Masquerade {
			put(masqueradeSet, key, "")
		}
		for slot := range uint32(slots) {
			to := s.Endpoints[int(slot)%len(s.Endpoints)]
			at := key + string(nft.Native(slot))
			put(endpointsMap, at, string(to.Addr().Unmap().AsSlice()))
			put(portsMap, at, string(binary.BigEndian.AppendUint16(nil, to.Port())))
		}
	}
	return list
}
