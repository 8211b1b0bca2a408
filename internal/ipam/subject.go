package ipam

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// subject is a Service in this decision, or a FloatingIP in the form of one.
type subject struct {
	*lb.Service
	// fip is the FloatingIP; nil for a Service.
	fip *lb.FloatingIP
	// held are its addresses so far.
	held perFamily

	// shareKey is the key under which it may share an address; "" if it may share none.
	shareKey string
	// shared are the addresses that are held under the key, ordered; nil if no other Service may share them.
	shared *[]netip.Addr
	// isJoining reports whether the Service takes only an address that is already held under its key.
	isJoining bool
	// terms caches the result of digest.
	terms string
	// clashing are the addresses that it gives up because its terms changed and clash with other holders.
	clashing []netip.Addr

	// isDissolved reports whether it is a FloatingIP that is being deleted and is not used.
	isDissolved bool
}

// perFamily has addresses by the index of a subject's family; a subject has at most two families. The zero Addr stands
// for no address.
type perFamily [2]netip.Addr

// objectID identifies a Service or a FloatingIP.
type objectID struct {
	lb.Key
	isFloating bool
}

// String returns the kind and the key.
func (id objectID) String() string {
	return id.kind() + " " + id.Key.String()
}

// kind returns the kind of the object.
func (id objectID) kind() string {
	if id.isFloating {
		return "FloatingIP"
	}
	return "Service"
}

// id identifies the subject.
func (s *subject) id() objectID {
	return objectID{Key: s.Key, isFloating: s.fip != nil}
}

// nameOf names another object in a message to the subject's user. Users must not learn the names of objects in other
// namespaces.
func (s *subject) nameOf(id objectID) string {
	if id.Namespace != s.Key.Namespace {
		return "a " + id.kind() + " of another namespace"
	}
	return id.String()
}

// holds reports whether the subject holds the address.
func (s *subject) holds(addr netip.Addr) bool {
	return slices.Contains(s.held[:], addr)
}

// family returns the index of the address's family, or -1 if the subject does not have that family.
func (s *subject) family(addr netip.Addr) int {
	if !addr.IsValid() {
		return -1
	}
	return slices.Index(s.Families, lb.FamilyOf(addr))
}

// checkServable returns a refusal if the Service can hold no address at all.
func (s *subject) checkServable() *refusal {
	switch {
	case len(s.Families) == 0:
		return refuse(lb.NoClusterIP, "the Service has no cluster IP, so that nothing could be delivered: "+
			"a headless Service cannot be served")
	case s.FamilyPolicy == lb.RequireDualStack && len(s.Families) < 2:
		return refuse(lb.DualStackUnmet, "ipFamilyPolicy is RequireDualStack, but the Service has an %s cluster IP only",
			s.Families[0])
	}

	return nil
}

// checkProblem returns a refusal if the Service has a Problem because of which it waits.
func (s *subject) checkProblem() *refusal {
	if s.Problem == nil {
		return nil
	}
	return &refusal{reason: s.Problem.Reason, message: s.Problem.Message}
}

// former yields every address in the subject's status (isShown). It also yields the addresses that the subject held by
// its record until another writer replaced them in the status. A Service with an empty status gets its addresses back,
// so for it these are not former.
func (s *subject) former(yield func(addr netip.Addr, isShown bool) bool) {
	for _, addr := range s.Addresses {
		if !yield(addr, true) {
			return
		}
	}
	if len(s.Addresses) == 0 {
		return
	}

	for _, o := range s.Record {
		isReplaced := o.Terms != lb.TermsReleased && !slices.Contains(s.Addresses, o.Address)
		if isReplaced && !yield(o.Address, false) {
			return
		}
	}
}

// lostOrigins yields one address of each family that the Service held or recalls, and that is not in its status or will
// not be. Addresses that its record proves come first.
func (s *subject) lostOrigins(yield func(lb.Origin) bool) {
	var seen perFamily
	for _, list := range []lb.Origins{s.Record, s.Recall} {
		for _, o := range list {
			f := s.family(o.Address)
			isNext := f >= 0 && !seen[f].IsValid()
			isLost := o.Terms != lb.TermsReleased && s.isAbsent(o.Address)
			if !isNext || !isLost {
				continue
			}

			seen[f] = o.Address
			origin := lb.Origin{Address: o.Address, Pool: o.Pool}
			if !yield(origin) {
				return
			}
		}
	}
}

// awaitedOrigins returns the lost addresses of the families without an address. Their pools may be restored after the
// Service.
func (s *subject) awaitedOrigins() (out lb.Origins) {
	for origin := range s.lostOrigins {
		if !s.held[s.family(origin.Address)].IsValid() {
			out = append(out, origin)
		}
	}

	return out
}

// isAbsent reports whether an address is not in the status of the Service, or will not be.
func (s *subject) isAbsent(addr netip.Addr) bool {
	return !slices.Contains(s.Addresses, addr) || slices.Contains(s.clashing, addr)
}

// overwritten returns the addresses that the Service held when another load balancer overwrote its status. The record
// keeps them in this form while holdfast.dev/renew is set.
func (s *subject) overwritten() lb.Origins {
	var out lb.Origins
	for _, o := range s.Record {
		hasFamily := s.family(o.Address) >= 0
		if hasFamily && s.isAbsent(o.Address) {
			out = append(out, lb.Origin{
				Address: o.Address,
				Pool:    o.Pool,
				Terms:   lb.TermsReleased,
			})
		}
	}

	return out
}

// hasRecordedTerms reports whether the Service still has the terms under which the address was assigned.
func (s *subject) hasRecordedTerms(addr netip.Addr) bool {
	return s.Record.Of(addr).Terms == s.digest()
}

// addSubjects makes a subject of every Service and of every FloatingIP, and finds the keys under which Services share.
func (a *assigner) addSubjects() {
	a.addServices()
	for _, s := range a.services {
		if s.isSharing() && a.shared[s.shareKey] == nil {
			a.shared[s.shareKey] = new([]netip.Addr)
		}
	}

	if len(a.shared) > 0 {
		for _, s := range a.services {
			s.shared = a.shared[s.shareKey]
		}
	}

	for i := range a.state.FloatingIPs {
		f := &a.state.FloatingIPs[i]
		s := &subject{Service: a.asService(f), fip: f}
		a.floating = append(a.floating, s)
		a.floatingByKey[f.Key] = s
		if f.ServiceName != "" {
			key := lb.Key{Namespace: f.Key.Namespace, Name: f.ServiceName}
			a.dedicated[key] = append(a.dedicated[key], s)
		}
	}
}

// addServices makes a subject of every Service, and orders them by age. The order is found without the Services, which
// are large.
func (a *assigner) addServices() {
	type item struct {
		created time.Time
		index   int
	}
	subjects := make([]subject, len(a.state.Services))
	items := make([]item, len(subjects))
	a.services = make([]*subject, len(subjects))
	for i, svc := range a.state.Services {
		subjects[i] = newSubject(svc)
		items[i] = item{created: svc.Created, index: i}
		a.services[i] = &subjects[i]
	}

	slices.SortFunc(items, func(x, y item) int {
		c := x.created.Compare(y.created)
		if c != 0 {
			return c
		}
		return cmp.Compare(x.index, y.index) // the State is ordered by key
	})

	a.byAge = make([]*subject, len(subjects))
	for i, it := range items {
		a.byAge[i] = &subjects[it.index]
	}
}

// newSubject returns the subject of a Service, with the key under which it may share.
func newSubject(svc *lb.Service) subject {
	s := subject{Service: svc}
	namesAnother := svc.LoadBalancerID != "" && svc.LoadBalancerID != svc.UID
	switch {
	case svc.SharingKey != "":
		s.shareKey = "key " + svc.SharingKey
	case namesAnother:
		s.shareKey = "id " + svc.LoadBalancerID
		s.isJoining = true
	case svc.UID != "":
		s.shareKey = "id " + svc.UID
	}

	return s
}

// isSharing reports whether the Service asks for an address that others have, or offers its own by a sharing key.
func (s *subject) isSharing() bool {
	return s.isJoining || s.SharingKey != ""
}

// digest summarizes the terms that determine with which Services a Service may share an address: what checkCompatible
// compares, and the ports that it declares. It is cryptographic: otherwise a user could find other terms with the same
// digest, and hold the address under terms that were never checked.
//
// Every Service with an address has a digest in each decision, so digest avoids allocations: the record usually has the
// same text.
func (s *subject) digest() string {
	if s.terms != "" || s.fip != nil {
		return s.terms
	}

	text := appendQuoted(make([]byte, 0, 128), s.shareKey)
	text = strconv.AppendBool(text, s.Internal)
	text = strconv.AppendBool(text, s.isLocal())
	if s.isLocal() {
		text = appendQuoted(text, s.Backend)
	}

	ports := append(make([]lb.Port, 0, 8), s.Ports...)
	ports = append(ports, s.Unserved...)
	slices.SortFunc(ports, func(a, b lb.Port) int {
		return cmp.Or(
			cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Protocol, b.Protocol),
		)
	})

	for _, p := range ports {
		text = append(text, p.Protocol...)
		text = strconv.AppendUint(text, uint64(p.Port), 10)
	}

	sum := sha256.Sum256(text)
	var terms [32]byte
	hex.Encode(terms[:], sum[:16])
	for _, o := range s.Record {
		if o.Terms == string(terms[:]) {
			s.terms = o.Terms
			return s.terms
		}
	}

	s.terms = string(terms[:])
	return s.terms
}

// asService returns a FloatingIP as a Service with the same requests. It is internal if the pool that it requests, or
// the pool of its addresses, is internal.
func (a *assigner) asService(f *lb.FloatingIP) *lb.Service {
	svc := &lb.Service{
		Key:                f.Key,
		UID:                f.UID,
		Labels:             f.Labels,
		Created:            f.Created,
		Families:           f.Families,
		FamilyPolicy:       lb.SingleStack,
		RequestedAddresses: f.Wanted,
		RequestedPool:      f.Pool,
		Addresses:          f.Addresses,
		Record:             f.Record,
		Recall:             f.Recall,
	}

	if f.Pool != "" {
		for i := range a.state.Pools {
			p := &a.state.Pools[i]
			if p.Answers(f.Pool) && p.Internal {
				svc.Internal = true
			}
		}

		return svc
	}

	for _, addr := range slices.Concat(f.Addresses, f.Wanted) {
		p := a.index.Find(addr)
		if p != nil {
			svc.Internal = p.Internal
		}
	}

	return svc
}
