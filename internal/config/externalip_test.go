package config

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// written returns a pool with the status that the controller writes for these objects.
func written(o Objects, name string) *v1beta1.IPAddressPool {
	s, _ := Compile(o, Options{Default: true})
	for _, p := range s.Pools {
		if p.Name != name {
			continue
		}
		at := slices.IndexFunc(o.Pools, func(object *v1beta1.IPAddressPool) bool { return object.Name == name })
		out := o.Pools[at].DeepCopy()
		out.Status = v1beta1.IPAddressPoolStatus{}
		out.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionValid}}
		for _, r := range p.Guarded {
			out.Status.Guarded = append(out.Status.Guarded, r.String())
		}
		for _, e := range p.ExternalIPs {
			one := v1beta1.ExternalAddress{Address: e.Address.String(), Service: e.Service.String()}
			out.Status.ExternalIPs = append(out.Status.ExternalIPs, one)
		}
		return out
	}
	return nil
}

// guardedOf returns the addresses that a speaker closes.
func guardedOf(o Objects) string {
	s, _ := Compile(o, Options{Default: true, ForSpeaker: true})
	s.Now, s.Members = time.Unix(1e9, 0), map[string]bool{"w1": true}
	return fmt.Sprint(plan.ForNode("w1", s).Filter.Guarded)
}

// TestExternalIPs: a pool comes to cover an address that a Service has in spec.externalIPs. It assigns the address to
// no other Service, and the filter does not apply to it. Later externalIPs stay closed, which the pool reports.
func TestExternalIPs(t *testing.T) {
	for _, f := range []struct{ pool, taken, later, first, all, without string }{
		{"172.30.0.228/30", "172.30.0.229", "172.30.0.231", "172.30.0.228",
			"[172.30.0.228-172.30.0.231]", "[172.30.0.228 172.30.0.230-172.30.0.231]"},
		{"fd00:30::4/126", "fd00:30::5", "fd00:30::7", "fd00:30::4",
			"[fd00:30::4-fd00:30::7]", "[fd00:30::4 fd00:30::6-fd00:30::7]"},
	} {
		clusterIP := "10.96.3.1"
		if f.pool[0] == 'f' {
			clusterIP = "fd00:96::1"
		}
		had := plainService("had", clusterIP, f.taken)
		ours := services(3)
		for _, s := range ours {
			s.Spec.ClusterIP = clusterIP
		}
		o := Objects{Pools: []*v1beta1.IPAddressPool{poolObject("p", 1, f.pool)}, Services: append(ours, had),
			Nodes: []*corev1.Node{podNode("w1", "10.0.0.1")}}
		same(t, "closed before the controller saw it", "[]", guardedOf(o))
		last := f.later
		if got := given(o); len(got) != 3 || got[0] != f.first || got[2] != last {
			t.Errorf("%s: given %v", f.pool, got)
		}
		o.Pools[0] = written(o, "p")
		record := []v1beta1.ExternalAddress{{Address: f.taken, Service: "default/had"}}
		same(t, "recorded", record, o.Pools[0].Status.ExternalIPs)
		same(t, "closed", f.without, guardedOf(o))
		_, problems := Compile(o, Options{Default: true})
		same(t, "problems", []string{fmt.Sprintf("note IPAddressPool p AddressNotUsable: "+
			"spec.addresses holds what belongs to the cluster, which no Service gets: "+
			"%s (Service %q, in its spec.externalIPs): take that out", f.taken, "default/had")}, problemTexts(problems))

		thief := plainService("late", clusterIP, f.later, f.taken)
		o.Services = append(o.Services, thief)
		s, problems := Compile(o, Options{Default: true})
		closed := []lb.ExternalIP{{Address: netip.MustParseAddr(f.taken), Service: KeyOf(thief)},
			{Address: netip.MustParseAddr(f.later), Service: KeyOf(thief)}}
		same(t, "closed ones", closed, s.ClosedIPs, addrs())
		same(t, "the note", fmt.Sprintf("note IPAddressPool p ExternalIPClosed: "+
			"spec.externalIPs of Services opens no address of a pool, and these stay closed: %s (Service %q), %s (Service %q): "+
			"take them out of the Services, or out of the pool", f.taken, "default/late", f.later, "default/late"),
			problemTexts(problems)[1])
		open, _ := Compile(o, Options{Default: true, Undeclared: v1beta1.UndeclaredAllow})
		unfiltered, _ := Compile(o, Options{Default: true, NoFilter: true})
		if len(open.ClosedIPs)+len(unfiltered.ClosedIPs) > 0 {
			t.Errorf("%v and %v are closed, where nothing closes them", open.ClosedIPs, unfiltered.ClosedIPs)
		}
		o.Pools[0] = written(o, "p")
		same(t, "closed with a late one", f.without, guardedOf(o))

		// It is in force for as long as the Service has it.
		had.Spec.ExternalIPs = nil
		o.Pools[0] = written(o, "p")
		same(t, "closed when the Service has it no more", f.all, guardedOf(o))
		had.Spec.ExternalIPs = []string{f.taken}
		o.Pools[0] = written(o, "p")
		same(t, "closed when it has it again", f.all, guardedOf(o))
	}
}

// TestExternalIPsOfPools: a range that moves to another pool is not searched again, nor is the range of a pool from
// before there were records. The addresses of our Services stay guarded.
func TestExternalIPsOfPools(t *testing.T) {
	had, late := plainService("had", "10.96.3.1", "172.30.0.229"), plainService("late", "10.96.3.2", "172.30.0.230")
	old := poolObject("old", 1, "172.30.0.228/30")
	old = written(Objects{Pools: []*v1beta1.IPAddressPool{old}, Services: []*corev1.Service{had}}, "old")
	old.DeletionTimestamp = new(metav1.Unix(9, 0))
	o := Objects{Services: []*corev1.Service{had, late}, Nodes: []*corev1.Node{podNode("w1", "10.0.0.1")}}
	o.Pools = []*v1beta1.IPAddressPool{old, poolObject("new", 2, "172.30.0.228/29")}
	o.Pools[1] = written(o, "new")
	same(t, "renamed", "[172.30.0.224-172.30.0.228 172.30.0.230-172.30.0.231]", guardedOf(o))

	upgraded := poolObject("p", 1, "172.30.0.228/30")
	upgraded.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionValid}}
	o = Objects{Pools: []*v1beta1.IPAddressPool{upgraded}, Services: []*corev1.Service{had}, Nodes: o.Nodes}
	same(t, "before the new controller", "[172.30.0.228-172.30.0.231]", guardedOf(o))
	o.Pools[0] = written(o, "p")
	same(t, "after an upgrade", "[172.30.0.228-172.30.0.231]", guardedOf(o))

	ours := services(1)[0]
	having("172.30.0.229")(ours)
	o.Pools, o.Services = []*v1beta1.IPAddressPool{poolObject("p", 1, "172.30.0.228/30")}, []*corev1.Service{had, ours}
	same(t, "an address of ours in a new pool", "[172.30.0.229]", guardedOf(o))
	o.Pools[0] = written(o, "p")
	same(t, "an address of ours", "[172.30.0.228-172.30.0.231]", guardedOf(o))
}

// TestManyExternalIPs: the record is bounded. Addresses that it has no room for stay closed, and recorded ones stay.
func TestManyExternalIPs(t *testing.T) {
	o := Objects{Pools: []*v1beta1.IPAddressPool{poolObject("p", 1, "172.30.0.0/16")}}
	for i := range 100 {
		clusterIP, externalIP := fmt.Sprintf("10.96.3.%d", i), fmt.Sprintf("172.30.1.%d", i)
		o.Services = append(o.Services, plainService(fmt.Sprintf("e%02d", i), clusterIP, externalIP))
	}
	o.Pools[0] = written(o, "p")
	if n := len(o.Pools[0].Status.ExternalIPs); n != maxRecorded {
		t.Errorf("%d are recorded", n)
	}
	o.Services = append(o.Services, plainService("first", "10.96.4.1", "172.30.0.1"))
	again := written(o, "p")
	same(t, "the record", o.Pools[0].Status.ExternalIPs, again.Status.ExternalIPs)
	if s, _ := Compile(o, Options{Default: true}); len(s.ClosedIPs) != 101-maxRecorded {
		t.Errorf("%d stay closed", len(s.ClosedIPs))
	}
}
