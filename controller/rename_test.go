package main

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// poolOf returns a pool that was created in this second.
func poolOf(name string, second int64, addresses ...string) *v1beta1.IPAddressPool {
	return &v1beta1.IPAddressPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Unix(second, 0)},
		Spec:       v1beta1.IPAddressPoolSpec{Addresses: addresses},
	}
}

// replacement is a cluster whose pools are renamed, split or cut while speakers and a controller look at it.
type replacement struct {
	*testing.T
	*apiServer
	syncer *syncer
	// wants are the addresses that must be announced all the time.
	wants []string
}

// replacing returns a cluster with one node and Services that hold an address of each family of the pools.
func replacing(t *testing.T, pools ...*v1beta1.IPAddressPool) *replacement {
	r := &replacement{T: t, apiServer: newServer(t)}
	for _, p := range pools {
		r.put(t, p)
	}
	for i := range 3 {
		web := loadBalancer(fmt.Sprintf("web%d", i))
		web.CreationTimestamp, web.Spec.ClusterIPs = metav1.Unix(int64(10+i), 0), []string{"10.96.0.1", "fd00:96::1"}
		r.put(t, web)
	}
	r.restart()
	r.settle()
	for i := range 3 {
		for _, in := range r.service(t, fmt.Sprintf("web%d", i)).Status.LoadBalancer.Ingress {
			r.wants = append(r.wants, in.IP)
		}
	}
	slices.Sort(r.wants)
	if len(r.wants) != 6 {
		t.Fatalf("the Services hold %v", r.wants)
	}
	r.edit(func() { r.after = r.look })
	return r
}

// restart makes another controller the leader. It knows only what the API server has.
func (r *replacement) restart() {
	r.Helper()
	r.syncer = newTestSyncer(r.T, r.apiServer)
}

// settle runs the controller until it has nothing to write.
func (r *replacement) settle() {
	r.Helper()
	// A quarantine may end an hour later: the next run does not wait for that.
	const retry = 300 * time.Millisecond
	late := time.After(20 * time.Second)
	for {
		_, err := r.syncer.sync(r.Context())
		r.reap()
		must(r, r.syncer.cluster.Refresh(r.Context()))
		if err == nil && len(r.landed()) == 0 {
			return
		}
		select {
		case <-time.After(retry):
		case <-late:
			r.Fatal("there is always something to write")
		}
	}
}

// reap deletes the pools whose deletion nothing holds up, with their memories.
func (r *replacement) reap() {
	r.edit(func() {
		for at, o := range r.objects {
			m := o["metadata"].(map[string]any)
			if held, _ := m["finalizers"].([]any); path.Dir(at) == poolsPath && m["deletionTimestamp"] != nil && len(held) == 0 {
				delete(r.objects, at)
				delete(r.objects, memoriesPath+"/"+path.Base(at))
				r.look()
			}
		}
	})
}

// pool returns a pool, nil if it is gone.
func (r *replacement) pool(name string) *v1beta1.IPAddressPool {
	var p v1beta1.IPAddressPool
	if r.get(r.T, poolsPath+"/"+name, &p); p.Name == "" {
		return nil
	}
	return &p
}

// change edits a pool as kubectl apply does.
func (r *replacement) change(name string, edit func(*v1beta1.IPAddressPool)) {
	r.Helper()
	p := r.pool(name)
	edit(p)
	r.put(r.T, p)
	must(r, r.syncer.cluster.Refresh(r.Context()))
}

// delete deletes a pool as kubectl delete does.
func (r *replacement) delete(name string) {
	r.Helper()
	r.change(name, func(p *v1beta1.IPAddressPool) { p.DeletionTimestamp = new(metav1.Now()) })
}

// add creates a pool.
func (r *replacement) add(p *v1beta1.IPAddressPool) {
	r.Helper()
	r.put(r.T, p)
	must(r, r.syncer.cluster.Refresh(r.Context()))
}

// look checks that a speaker that sees the present objects announces all addresses. mu is held.
func (r *replacement) look() {
	s := r.state()
	var got []string
	for route := range plan.ForNode("w1", s).Routes.All() {
		got = append(got, route.Addr().String())
	}
	if slices.Sort(got); !slices.Equal(got, r.wants) {
		r.Errorf("announced are %v, want %v", got, r.wants)
	}
}

// state returns what a speaker sees. mu is held.
func (r *replacement) state() lb.State {
	o := config.Objects{
		BGPAdvertisements: []*v1beta1.BGPAdvertisement{{ObjectMeta: metav1.ObjectMeta{Name: "all"}}},
		Peers:             []*v1beta1.BGPPeer{{ObjectMeta: metav1.ObjectMeta{Name: "router"}}},
		Nodes:             []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}},
	}
	o.Peers[0].Spec = v1beta1.BGPPeerSpec{
		MyASN: 64500, PeerASN: 64501, PeerAddress: "10.0.0.1", DualStackAddressFamily: true,
	}
	for at, object := range r.objects {
		switch path.Dir(at) {
		case poolsPath:
			o.Pools = append(o.Pools, decoded[v1beta1.IPAddressPool](r, object))
		case memoriesPath:
			o.PoolMemories = append(o.PoolMemories, decoded[v1beta1.PoolMemory](r, object))
		case servicesPath:
			s := decoded[corev1.Service](r, object)
			o.Services = append(o.Services, s)
			for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
				o.EndpointSlices = append(o.EndpointSlices, endpointsOf(s.Name, family))
			}
		}
	}
	s, _ := config.Compile(o, config.Options{Default: true})
	s.Now, s.Members = time.Now(), map[string]bool{"w1": true}
	return s
}

// endpointsOf returns a ready endpoint of a Service.
func endpointsOf(service string, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	address := map[discoveryv1.AddressType]string{
		discoveryv1.AddressTypeIPv4: "10.244.0.5", discoveryv1.AddressTypeIPv6: "fd00:244::5",
	}[family]
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: service + "-" + strings.ToLower(string(family)),
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, NodeName: new("w1")}},
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
}

func decoded[T any](t testing.TB, object map[string]any) *T {
	out := new(T)
	body, err := json.Marshal(object)
	must(t, err)
	must(t, json.Unmarshal(body, out))
	return out
}

// records returns the pools that the records of all Services name.
func (r *replacement) records() (pools []string) {
	r.edit(func() {
		for _, s := range r.state().Services {
			for _, o := range s.Record {
				if !slices.Contains(pools, o.Pool) {
					pools = append(pools, o.Pool)
				}
			}
		}
	})
	slices.Sort(pools)
	return pools
}

// TestPoolReplaced: whatever becomes of a pool, the addresses that are held stay and are announced all the time, the
// pools that are deleted go, and the records name the pools that exist.
func TestPoolReplaced(t *testing.T) {
	const v4, v6 = "192.0.2.0/29", "2001:db8::/125"
	avoiding := func(p *v1beta1.IPAddressPool) *v1beta1.IPAddressPool { p.Spec.AvoidBuggyIPs = true; return p }
	for _, tt := range []struct {
		name  string
		steps []func(*replacement)
		// stay are the pools in the end, and records those that records name then.
		stay, records []string
	}{
		{"renamed", []func(*replacement){
			func(r *replacement) { r.add(poolOf("new", 2, v4, v6)) },
			func(r *replacement) { r.delete("old") },
		}, []string{"new"}, []string{"new"}},
		{"deleted first", []func(*replacement){
			func(r *replacement) { r.delete("old") },
			func(r *replacement) { r.add(poolOf("new", 2, v4, v6)) },
		}, []string{"new"}, []string{"new"}},
		{"renamed, and cut afterwards", []func(*replacement){
			func(r *replacement) { r.add(poolOf("new", 2, v4, v6)) },
			func(r *replacement) { r.delete("old") },
			func(r *replacement) {
				r.change("new", func(p *v1beta1.IPAddressPool) { p.Spec.Addresses = []string{"192.0.2.1/32"} })
			},
		}, []string{"new"}, []string{"new"}},
		{"covered in part", []func(*replacement){
			func(r *replacement) { r.add(poolOf("new", 2, "192.0.2.0/31")) },
			func(r *replacement) { r.delete("old") },
		}, []string{"new", "old"}, []string{"new", "old"}},
		{"split", []func(*replacement){
			func(r *replacement) { r.add(poolOf("four", 2, v4)) },
			func(r *replacement) { r.delete("old") },
			func(r *replacement) { r.add(poolOf("six", 3, v6)) },
		}, []string{"four", "six"}, []string{"four", "six"}},
		{"names swapped in two steps", []func(*replacement){
			func(r *replacement) { r.add(poolOf("other", 2, "198.51.100.0/29")) },
			func(r *replacement) {
				r.change("old", func(p *v1beta1.IPAddressPool) { p.Spec.Addresses = []string{"198.51.100.0/29"} })
			},
			func(r *replacement) {
				r.change("other", func(p *v1beta1.IPAddressPool) { p.Spec.Addresses = []string{v4, v6} })
			},
		}, []string{"old", "other"}, []string{"old"}},
		{"swapped, and the first one deleted", []func(*replacement){
			func(r *replacement) {
				r.change("old", func(p *v1beta1.IPAddressPool) { p.Spec.Addresses = []string{"198.51.100.0/29"} })
			},
			func(r *replacement) { r.add(poolOf("other", 2, v4, v6)) },
			func(r *replacement) { r.delete("old") },
			func(r *replacement) {
				r.change("other", func(p *v1beta1.IPAddressPool) { p.Spec.Addresses = []string{"198.51.100.0/29"} })
			},
		}, []string{"other"}, []string{"other"}},
		{"a cut undone", []func(*replacement){
			func(r *replacement) {
				r.change("old", func(p *v1beta1.IPAddressPool) { p.Spec.Addresses = []string{"198.51.100.0/29"} })
			},
			func(r *replacement) {
				r.change("old", func(p *v1beta1.IPAddressPool) { p.Spec.Addresses = []string{v4, v6} })
			},
		}, []string{"old"}, []string{"old"}},
		{"by a pool that avoids an address that is held", []func(*replacement){
			func(r *replacement) { r.add(avoiding(poolOf("new", 2, v4, v6))) },
			func(r *replacement) { r.delete("old") },
		}, []string{"new"}, []string{"new"}},
		{"under its own name, by way of another", []func(*replacement){
			func(r *replacement) { r.delete("old") },
			func(r *replacement) { r.add(poolOf("new", 2, v4, v6)) },
			func(r *replacement) { r.add(poolOf("old", 3, v4, v6)) },
			func(r *replacement) { r.delete("new") },
		}, []string{"old"}, []string{"old"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := replacing(t, poolOf("old", 1, v4, v6))
			for _, step := range tt.steps {
				step(r)
				r.settle()
			}
			var stay []string
			for _, name := range []string{"four", "new", "old", "other", "six"} {
				if r.pool(name) != nil {
					stay = append(stay, name)
				}
			}
			if got := r.records(); !slices.Equal(stay, tt.stay) || !slices.Equal(got, tt.records) {
				t.Errorf("pools %v stay, want %v; records name %v, want %v", stay, tt.stay, got, tt.records)
			}
		})
	}
}

// TestPoolHandsOver: a controller that ends after any of its writes leaves nothing behind with a pool that goes:
// another one writes the rest first.
func TestPoolHandsOver(t *testing.T) {
	for _, broken := range []string{memoriesPath + "/new", servicesPath + "/web1"} {
		t.Run(path.Base(broken), func(t *testing.T) {
			old, late := poolOf("old", 1, "192.0.2.0/29", "2001:db8::/125"), poolOf("new", 2, "192.0.2.0/29", "2001:db8::/125")
			old.Spec.ReuseDelay = &metav1.Duration{Duration: time.Hour}
			late.Spec.ReuseDelay = &metav1.Duration{Duration: time.Hour}
			r := replacing(t, old)
			gone := leaving("gone", "192.0.2.7")
			r.put(t, gone)
			must(t, r.syncer.cluster.Refresh(t.Context()))
			syncOnce(t, r.syncer)
			r.edit(func() {
				r.fail = map[string]bool{broken: true, path.Dir(broken): broken == memoriesPath+"/new", broken + "/status": true}
			})
			r.add(late)
			r.delete("old")
			if _, err := r.syncer.sync(t.Context()); err == nil {
				t.Fatalf("%s was not written, and that is no error", broken)
			}
			for range 2 {
				r.reap()
				_, _ = r.syncer.sync(t.Context()) // it may wait before it tries again
			}
			r.reap()
			if r.pool("old") == nil {
				t.Fatalf("the old pool is gone before %s was written", broken)
			}
			r.edit(func() { r.fail = nil })
			r.restart()
			r.settle()
			var m v1beta1.PoolMemory
			r.get(t, memoriesPath+"/new", &m)
			has := slices.ContainsFunc(m.Status.Released,
				func(a v1beta1.ReleasedAddress) bool { return a.Address == "192.0.2.7" })
			if r.pool("old") != nil || !has || !slices.Equal(r.records(), []string{"new"}) {
				t.Errorf("the old pool is %v, the new one remembers %v, records name %v", r.pool("old"),
					m.Status.Released, r.records())
			}
		})
	}
}

// TestReplaceForce: a pool that waits for its holders says how its name can be had again.
func TestReplaceForce(t *testing.T) {
	r := replacing(t, poolOf("old", 1, "192.0.2.0/29", "2001:db8::/125"))
	r.delete("old")
	r.settle()
	c := meta.FindStatusCondition(r.pool("old").Status.Conditions, v1beta1.ConditionValid)
	for _, part := range []string{
		"waits for 6 addresses", "default/web0", "the former name in `spec.aliases`", "`kubectl replace --force`",
	} {
		if c == nil || c.Reason != string(lb.Deleting) || !strings.Contains(c.Message, part) {
			t.Errorf("the condition lacks %q: %+v", part, c)
		}
	}
}
