package egress

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Desired is the whole desired state of a Translator. Its slices and its map must not be changed later.
type Desired struct {
	lb.Egress
	// Nodes are the addresses of the cluster's nodes. They are not outside of the cluster, and neither is a prefix that
	// the main routing table sends through one of them. Link-local addresses count too: BGP for IPv6 has them as
	// routers (RFC 2545 section 3).
	Nodes []netip.Addr
	// Speakers are the MACs of the links of all speakers. Packets from them are not passed on again.
	Speakers map[lb.MAC]bool
}

// equal reports whether two desired states are the same.
func (d *Desired) equal(o *Desired) bool {
	sameSpeakers := lb.SameMap(d.Speakers, o.Speakers) || maps.Equal(d.Speakers, o.Speakers)
	return sameSpeakers &&
		slices.Equal(d.Sources, o.Sources) &&
		slices.Equal(d.Passes, o.Passes) &&
		slices.EqualFunc(d.Ways, o.Ways, lb.EgressWay.Equal) &&
		slices.Equal(d.Inside, o.Inside) &&
		slices.Equal(d.Nodes, o.Nodes)
}

// Config configures a Translator.
type Config struct {
	Log *slog.Logger
	// Links returns the current links of the node; it must not block.
	Links func() []lb.Interface
	// Changed is called when the result of Faults or Exhausted changes; it may be nil. It must not block.
	Changed func()
}

// Translator keeps the tables of this node.
type Translator struct {
	config Config
	// bridges is the table of the family bridge. tables are the tables of IPv4 and IPv6.
	bridges *table
	tables  []*table
	// wake makes Run synchronize, and arrived reports a new desired state to Run.
	wake, arrived lb.Signal
	// conntrack changes the kernel's connections, and routing its routing rules and tables.
	conntrack *conntrack
	routing   *routing

	mu sync.Mutex
	// desired is the argument of the last Set; nil before the first.
	desired *Desired
	// view is the last complete one, and unread reports whether the last attempt to read another one failed.
	view   *view
	unread bool
	// model is the model that the tables were last made equal to; nil if there is none.
	model *model
	// known are the rights that are in the kernel, by the address of the pod; nil until they are read.
	known map[netip.Addr]right
	// ways are the links of the ways of the last model; nil until they are read.
	ways map[lb.Family]waySlots
	// repairsSwept is the number of repairs after which connections were last swept.
	repairsSwept uint64
	// faults is the result of Faults, and exhausted of Exhausted.
	faults    map[netip.Addr]string
	exhausted []netip.Addr
}

// New returns a Translator. It does not change the kernel.
func New(c Config) *Translator {
	t := &Translator{
		config:    c,
		wake:      lb.NewSignal(),
		arrived:   lb.NewSignal(),
		conntrack: newConntrack(c.Log),
		routing:   &routing{log: c.Log, isUsed: true},
	}
	t.bridges = newTable(c.Log, "bridge", bridgeLayout(), t.wake.Kick)
	for _, f := range families() {
		table := newTable(c.Log, string(f.name), f.layout(), t.wake.Kick)
		table.family = f
		t.tables = append(t.tables, table)
	}

	return t
}

// Try asks the kernel whether it accepts the table of a family, and changes nothing.
func Try(name lb.Family) error {
	all := families()
	isNamed := func(f *family) bool { return f.name == name }
	i := slices.IndexFunc(all, isNamed)
	return all[i].layout().Try()
}

// TryBridges asks the kernel whether it can tell the ports of bridges apart, and changes nothing. Where it cannot, pods
// behind bridges get no right.
func TryBridges() error { return bridgeLayout().Try() }

// Set translates for exactly the desired sources, and passes on exactly the desired slices. Both are in force when it
// returns, unless the kernel refuses them or the link of a pod is unknown: see Faults. The first call must be complete
// already: it ends the connections of pods that an earlier process knew and that are no sources.
func (t *Translator) Set(d Desired) {
	t.mu.Lock()
	defer t.mu.Unlock()
	uplinks := t.readUplinks(&d)
	same := t.desired != nil &&
		t.desired.equal(&d) &&
		maps.Equal(t.model.uplinks, uplinks)
	t.desired = &d
	if same {
		return
	}

	t.sync(t.read(), uplinks)
	t.arrived.Kick()
}

// readUplinks returns the links that lead out of the cluster: links that may announce addresses, links of the desired
// state, and links with a default route, whatever they are. A link that is down stays an uplink if it may announce, so
// no packet leaves by it untranslated when it is up again.
func (t *Translator) readUplinks(d *Desired) map[string]int {
	named := make(map[string]bool)
	for _, s := range d.Sources {
		named[s.Link] = true
	}
	for _, p := range d.Passes {
		named[p.Link] = true
	}
	for _, w := range d.Ways {
		named[w.Link] = true
	}

	out := make(map[string]int)
	for _, l := range t.config.Links() {
		l.Up = true
		isWanted := l.Usable() || named[l.Name] && l.CanAnnounce()
		hasDefault := l.Default || len(l.Ways) > 0
		if isWanted || hasDefault && !l.Loopback {
			out[l.Name] = l.Index
		}
	}

	return out
}

// sync makes the tables equal to the desired state. The caller holds the lock.
func (t *Translator) sync(v *view, uplinks map[string]int) {
	t.readKnown()
	portOf := func(s lb.EgressSource) (port, string) { return t.portOf(s, v) }
	m := newModel(t.desired, uplinks, v.routed, portOf)
	m.chooseWays(t.ways, t.known)
	t.ways = m.ways
	faults := t.routing.set(m.routes())
	m.closeWays(func(s source) string { return faults[m.wayOf(s)] })
	m.closeWays(m.misled)
	t.conntrack.forget(t.stale(m))

	ports := m.ports()
	err := t.bridges.set(ports, len(ports) > 0)
	if err != nil {
		isBridged := func(s source) bool { return s.port.bridge != 0 }
		m.refuse(isBridged, err)
	}

	for _, table := range t.tables {
		f := table.family
		err := table.set(m.elements(f), m.needs(f))
		if err != nil {
			isOfFamily := func(s source) bool { return f.Has(s.Pod) }
			m.refuse(isOfFamily, err)
		}
	}

	t.model = m
	t.conntrack.forgetLater(t.learn(m))
	t.publish()
}

// refuse closes the sources that need a table which the kernel refuses.
func (m *model) refuse(needs func(source) bool, err error) {
	for pod, s := range m.sources {
		if needs(s) {
			m.close(pod, "the kernel refuses a table: "+err.Error())
		}
	}
}

// publish updates the result of Faults. The caller holds the lock.
func (t *Translator) publish() {
	if maps.Equal(t.faults, t.model.faults) {
		return
	}

	for pod, fault := range t.model.faults {
		if t.faults[pod] != fault {
			t.config.Log.Warn("new connections of a pod are rejected", "pod", pod, "fault", fault)
		}
	}
	t.faults = t.model.faults

	if t.config.Changed != nil {
		t.config.Changed()
	}
}

// Faults returns why sources that should be open are closed, by the address of the pod. The map must not be changed.
func (t *Translator) Faults() map[netip.Addr]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.faults
}

// Exhausted returns the egress addresses whose slice of this node has no free port for some destination, in order. New
// connections to that destination fail silently, because the kernel drops their first packet.
func (t *Translator) Exhausted() []netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exhausted
}

// Run keeps the tables in force until the context ends. They then stay in force for the next process.
func (t *Translator) Run(ctx context.Context) error {
	var tasks errgroup.Group
	for _, table := range append(slices.Clone(t.tables), t.bridges) {
		tasks.Go(func() error {
			return table.Run(ctx)
		})
	}

	tasks.Go(func() error { return t.conntrack.run(ctx) })
	tasks.Go(func() error { return t.maintain(ctx) })
	tasks.Go(func() error { return t.watchSlices(ctx) })
	return tasks.Wait()
}

// Remove deletes the tables, and the routing rules and tables. A concurrent Run does not restore them; the next Set
// does.
func (t *Translator) Remove() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.desired, t.model = nil, nil
	err = t.routing.remove()
	for _, table := range append(slices.Clone(t.tables), t.bridges) {
		err = errors.Join(err, table.Remove())
	}

	t.arrived.Kick() // Run need not watch links any more
	return err
}
