package egress

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// right is what the kernel knows of a source.
type right struct {
	// uid is the UID of the pod; empty for a right of an earlier process.
	uid string
	// port is the veth that leads to the pod. A right of an earlier process has its index only.
	port port
	// address and first are the slice of the pod; zero while it has no right.
	address netip.Addr
	first   uint16
	// exit is the index of the link that its packets leave by; 0 if that is unknown.
	exit int
	// replaced is when another veth was found for the same pod; zero if there is none.
	replaced time.Time
}

// equal reports whether two rights are of the same pod and say the same.
func (r right) equal(o right) bool {
	return r.port.index == o.port.index && r.address == o.address && r.first == o.first
}

// right returns the right of a source.
func (s source) right() right {
	r := right{uid: s.UID, port: s.port, exit: s.exit}
	if s.hasRight() {
		r.address, r.first = s.Address, s.First
	}
	return r
}

// readKnown reads the rights that an earlier process left in the kernel, once. The caller holds the lock.
func (t *Translator) readKnown() {
	if t.known != nil {
		return
	}

	content, err := t.routing.read()
	if err == nil {
		t.ways = content.ways()
	}
	t.known = make(map[netip.Addr]right)
	ports := readPorts(t.bridges.layout)
	for _, table := range t.tables {
		content, err := table.layout.Read()
		if err != nil {
			continue // there is no table, or it has another layout
		}

		for _, e := range content.Elements {
			pod, ok := podOf(e)
			if !ok {
				continue
			}

			r := t.known[pod]
			switch e.Set {
			case podsSet:
				r.port.index = int(binary.NativeEndian.Uint32([]byte(e.Key)))
				if index, ok := ports[pod]; ok {
					r.port.index = index
				}
			case translationsMap:
				r.address, _ = netip.AddrFromSlice([]byte(e.Value))
			case firstsMap:
				r.first = binary.BigEndian.Uint16([]byte(e.Value))
			case exitsSet:
				r.exit = int(binary.NativeEndian.Uint32([]byte(e.Key[len(e.Key)-indexSize:])))
			default:
				continue
			}
			t.known[pod] = r
		}
	}
}

// readPorts returns the indexes of bridge ports in the kernel's table, by the address of the pod.
func readPorts(layout *nft.Layout) map[netip.Addr]int {
	out := make(map[netip.Addr]int)
	content, err := layout.Read()
	if err != nil {
		return out
	}

	for _, e := range content.Elements {
		if pod, ok := podOf(e); ok {
			out[pod] = int(binary.NativeEndian.Uint32([]byte(e.Key)))
		}
	}

	return out
}

// indexSize is the size of a link in a key, in bytes.
const indexSize = 4

// podOf returns the address in a key that begins with link and address.
func podOf(e nft.Element) (netip.Addr, bool) {
	if len(e.Key) < indexSize {
		return netip.Addr{}, false
	}
	address := e.Key[indexSize:]
	if e.Set == exitsSet || e.Set == rightsSet {
		address = address[:max(len(address)-indexSize, 0)]
	}
	return netip.AddrFromSlice([]byte(address))
}

// replaceDelay is the time for which a pod has no right after another veth was found for it. Usually that veth is the
// next pod's, which got the address before the API server reported the end of the pod. But the kubelet may also replace
// the sandbox of a pod.
const replaceDelay = 30 * time.Second

// portOf returns the port of a source, or why it is unknown. The pod keeps a port that exists: its route may be missing
// for a moment, for example after the link was down.
func (t *Translator) portOf(s lb.EgressSource, v *view) (port, string) {
	found, fault := v.portOf(s.Pod)
	former := t.known[s.Pod]
	isSamePod := former.uid != "" && former.uid == s.UID
	switch {
	case !isSamePod || found.index == former.port.index:
		return found, fault
	case len(v.ports[s.Pod]) == 0 && v.veths[former.port.index] == former.port:
		return former.port, ""
	case found == port{}:
		return found, fault
	}

	if former.replaced.IsZero() {
		former.replaced = time.Now()
		t.known[s.Pod] = former
	}

	if time.Since(former.replaced) < replaceDelay {
		return port{}, fmt.Sprintf("link %s has the pod's address, but was not the pod's", found.name)
	}
	return found, ""
}

// close takes the link of a pod out of a model, because of a fault.
func (m *model) close(pod netip.Addr, fault string) {
	s := m.sources[pod]
	if s.hasRight() {
		m.faults[pod] = fault
	}

	s.port, s.uplink = port{}, 0
	m.sources[pod] = s
}

// stale returns the sweeps that must come before the tables change: an address that has another pod now may have
// connections of the former pod, whose gate the new pod would pass.
func (t *Translator) stale(m *model) (list []sweep) {
	for pod, s := range m.sources {
		former, isKnown := t.known[pod]
		changed := isKnown && former.port.index != s.port.index
		if s.port == (port{}) || !changed && !t.conntrack.isPending(pod) {
			continue
		}

		addresses := map[netip.Addr]bool{s.Address: true, former.address: true}
		list = append(list, sweep{pod: pod, deletes: func(e entry) bool { return addresses[e.translated] }})
	}

	return list
}

// learn records the rights that the tables have now. It returns the sweeps of connections that do not fit: connections
// that a pod began before it had its right, and connections of pods that are no sources any more.
func (t *Translator) learn(m *model) (list []sweep) {
	for pod, former := range t.known {
		if _, isSource := m.sources[pod]; isSource {
			continue
		}

		delete(t.known, pod)
		if former.address.IsValid() {
			uses := func(e entry) bool { return e.translated == former.address }
			list = append(list, sweep{pod: pod, deletes: uses, ends: true})
		}
	}

	// Connections may have begun while a table was damaged.
	repairs := t.repairs()
	sweepAll := repairs != t.repairsSwept
	t.repairsSwept = repairs
	for pod, s := range m.sources {
		r := s.right()
		if s.port == (port{}) {
			continue
		}

		former := t.known[pod]
		t.known[pod] = r
		isNew := sweepAll || !former.equal(r)
		if isNew && s.hasRight() {
			list = append(list, sweep{pod: pod, deletes: m.beganBefore(s)})
		}
	}

	return list
}

// beganBefore returns a function that reports whether a connection to outside of the cluster is not translated as a
// source's right says. It may be called without locks, because a model does not change.
func (m *model) beganBefore(s source) func(entry) bool {
	slice := lb.PortSlice{Address: s.Address, First: s.First}
	routes := make(map[netip.Addr]bool)
	return func(e entry) bool {
		isTranslated := e.translated == s.Address && slice.Has(e.port)
		if isTranslated || e.isDstNAT || m.isInside(e.destination) {
			return false
		}

		leaves, known := routes[e.destination]
		if !known {
			leaves = m.leavesByUplink(s, e.destination)
			routes[e.destination] = leaves
		}
		return leaves
	}
}
