package ipam

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// subject is a Service in this decision, or a FloatingIP seen as one.
type subject struct {
	*lb.Service
	// fip is the FloatingIP; nil of a Service.
	fip *lb.FloatingIP
	// held are its addresses so far.
	held perFamily
	// key under which it may share an address; "" shares none.
	key string
	// shared are the addresses that are held under the key, ordered; nil if no other Service may share them.
	shared *[]netip.Addr
	// joins: the Service takes only an address that is already held under its key.
	joins bool
	// terms is the result of digest, once that was called.
	terms string
	// clashing are the addresses that it gives up because its terms have changed and now clash with other holders.
	clashing []netip.Addr
	// dissolved: a FloatingIP that is being deleted and is not used.
	dissolved bool
	// assignment is the decision about a Service; settled: the next one is the same while only others change.
	assignment *Assignment
	settled    bool
}

// perFamily has addresses by the index of a subject's family, of which there are two at most; the zero Addr is none.
type perFamily [2]netip.Addr

// party names a subject, or another object.
type party struct {
	lb.Key
	floating bool
}

func (p party) String() string { return p.kind() + " " + p.Key.String() }

func (p party) kind() string {
	if p.floating {
		return "FloatingIP"
	}
	return "Service"
}

// named names another party in a message to the subject's user, who must not learn what other namespaces have.
func (s *subject) named(p party) string {
	if p.Namespace != s.Key.Namespace {
		return "a " + p.kind() + " of another namespace"
	}
	return p.String()
}

func (s *subject) holds(addr netip.Addr) bool { return slices.Contains(s.held[:], addr) }

func (s *subject) party() party { return party{s.Key, s.fip != nil} }

func (s *subject) family(addr netip.Addr) int {
	if !addr.IsValid() {
		return -1
	}
	return slices.Index(s.Families, lb.FamilyOf(addr))
}

// unservable returns why a Service can hold no address at all.
func (s *subject) unservable() *refusal {
	switch {
	case len(s.Families) == 0:
		return refuse(
			lb.NoClusterIP,
			"the Service has no cluster IP, so that nothing could be delivered: a headless Service cannot be served",
		)
	case s.FamilyPolicy == lb.RequireDualStack && len(s.Families) < 2:
		return refuse(
			lb.DualStackUnmet,
			"ipFamilyPolicy is RequireDualStack, but the Service has an %s cluster IP only",
			s.Families[0],
		)
	}
	return nil
}

func (s *subject) unreadable() *refusal {
	if s.Problem == nil {
		return nil
	}
	return &refusal{reason: s.Problem.Reason, message: s.Problem.Message}
}

// had yields every address that is in the subject's status (shown), or that it held by its record until another writer
// put others into the status. A Service whose status is empty gets its addresses back.
func (s *subject) had(yield func(addr netip.Addr, shown bool) bool) {
	for _, addr := range s.Addresses {
		if !yield(addr, true) {
			return
		}
	}
	for _, o := range s.Record {
		if len(s.Addresses) > 0 &&
			o.Terms != lb.TermsReleased &&
			!slices.Contains(s.Addresses, o.Address) &&
			!yield(o.Address, false) {
			return
		}
	}
}

// lost yields the address of each family that the Service held or asks back, and that is not in its status or will not
// be: first what its record proves.
func (s *subject) lost(yield func(lb.Origin) bool) {
	var seen perFamily
	for _, list := range []lb.Origins{s.Record, s.Recall} {
		for _, had := range list {
			f := s.family(had.Address)
			if f < 0 || seen[f].IsValid() || had.Terms == lb.TermsReleased || !s.awaits(had.Address) {
				continue
			}
			seen[f] = had.Address
			if !yield(lb.Origin{Address: had.Address, Pool: had.Pool}) {
				return
			}
		}
	}
}

// lacks returns what is lost of the families without an address: pools may be restored after the Service.
func (s *subject) lacks() (out lb.Origins) {
	for had := range s.lost {
		if !s.held[s.family(had.Address)].IsValid() {
			out = append(out, had)
		}
	}
	return out
}

// awaits reports whether an address is not in the status of the Service, or will not be in it.
func (s *subject) awaits(addr netip.Addr) bool {
	return !slices.Contains(s.Addresses, addr) || slices.Contains(s.clashing, addr)
}

// overwritten returns what the Service held when another load balancer overwrote its status, as the record keeps it
// while holdfast.dev/renew stands.
func (s *subject) overwritten() lb.Origins {
	var out lb.Origins
	for _, had := range s.Record {
		if s.family(had.Address) >= 0 && s.awaits(had.Address) {
			out = append(out, lb.Origin{Address: had.Address, Pool: had.Pool, Terms: lb.TermsReleased})
		}
	}
	return out
}

// loyal reports whether the Service holds the address under the terms on which it was assigned.
func (s *subject) loyal(addr netip.Addr) bool { return s.Record.Of(addr).Terms == s.digest() }

// subjects makes a subject of every Service and of every FloatingIP, and finds the keys that matter.
func (a *assigner) subjects() {
	for _, svc := range a.state.Services {
		s := newSubject(svc)
		if a.services = append(a.services, s); s.sharing() && a.shared[s.key] == nil {
			a.shared[s.key] = new([]netip.Addr)
		}
	}
	for _, s := range a.services {
		s.shared = a.shared[s.key]
	}
	a.open = a.services
	for i := range a.state.FloatingIPs {
		f := &a.state.FloatingIPs[i]
		s := &subject{Service: a.asService(f), fip: f}
		a.floating, a.named[f.Key] = append(a.floating, s), s
		if f.ServiceName != "" {
			key := lb.Key{Namespace: f.Key.Namespace, Name: f.ServiceName}
			a.dedicated[key] = append(a.dedicated[key], s)
		}
	}
}

func newSubject(svc *lb.Service) *subject {
	s := &subject{Service: svc}
	switch {
	case svc.SharingKey != "":
		s.key = "key " + svc.SharingKey
	case svc.LoadBalancerID != "" && svc.LoadBalancerID != svc.UID:
		s.key, s.joins = "id "+svc.LoadBalancerID, true
	case svc.UID != "":
		s.key = "id " + svc.UID
	}
	return s
}

// sharing reports whether the Service asks for an address that others have, or lets others have its own by more than
// its id.
func (s *subject) sharing() bool { return s.joins || s.SharingKey != "" }

// digest summarizes what decides with whom a Service may share an address: what agree compares, and the ports that it
// declares. No two texts may have the same: whoever edits a Service would find another text, and would hold the address
// under terms that were never admitted. All Services with an address have one in each decision, hence the buffers.
func (s *subject) digest() string {
	if s.terms != "" || s.fip != nil {
		return s.terms
	}
	text := strconv.AppendQuote(make([]byte, 0, 128), s.key)
	text = strconv.AppendBool(strconv.AppendBool(text, s.Internal), s.local())
	if s.local() {
		text = strconv.AppendQuote(text, s.Backend)
	}
	ports := append(append(make([]lb.Port, 0, 8), s.Ports...), s.Unserved...)
	slices.SortFunc(ports, func(a, b lb.Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	for _, p := range ports {
		text = strconv.AppendUint(append(text, p.Protocol...), uint64(p.Port), 10)
	}
	sum := sha256.Sum256(text)
	s.terms = hex.EncodeToString(sum[:16])
	return s.terms
}

// asService returns a FloatingIP as a Service with the same requests. It is internal
// if the pool that it requests, or that its addresses lie in, is internal.
func (a *assigner) asService(f *lb.FloatingIP) *lb.Service {
	svc := &lb.Service{
		Key: f.Key, UID: f.UID, Labels: f.Labels, Created: f.Created,
		Families: f.Families, FamilyPolicy: lb.SingleStack,
		RequestedAddresses: f.Wanted, RequestedPool: f.Pool,
		Addresses: f.Addresses, Record: f.Record, Recall: f.Recall,
	}
	for i := range a.state.Pools {
		p := &a.state.Pools[i]
		svc.Internal = svc.Internal || f.Pool != "" && p.Answers(f.Pool) && p.Internal
	}
	if f.Pool == "" {
		for _, addr := range slices.Concat(f.Addresses, f.Wanted) {
			if s := a.index.Find(addr); s != nil {
				svc.Internal = s.Internal
			}
		}
	}
	return svc
}
