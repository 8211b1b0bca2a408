package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestLosesWhateverIsRefused: a tenant edits a Service, so that it clashes with another that shares its address, and
// fills it so that the API server refuses to make it larger, or to change its finalizers. It loses the address all the
// same: otherwise kube-proxy would lead the other's clients to it.
func TestLosesWhateverIsRefused(t *testing.T) {
	sharer := func(name string, port int32) *corev1.Service {
		sv := loadBalancer(name)
		sv.Spec.Ports[0].Port = port
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationSharingKey, "k")
		return sv
	}
	for _, tt := range []struct {
		name    string
		invalid func(*corev1.Service) bool
	}{
		{"annotations", func(sv *corev1.Service) bool {
			return sv.Name == "evil" && sv.Annotations[v1beta1.AnnotationAssigned] != ""
		}},
		{"finalizers", func(sv *corev1.Service) bool {
			return sv.Name == "evil" && !slices.Contains(sv.Finalizers, v1beta1.FinalizerAddress)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newTenancy(t, lan())
			c.create(sharer("evil", 80), sharer("web", 443))
			c.want("evil", "[192.0.2.0] Assigned")
			c.want("web", "[192.0.2.0] Assigned")
			c.server.invalid = tt.invalid
			sv := c.service("evil")
			delete(sv.Annotations, v1beta1.AnnotationAssigned)
			sv.Spec.Ports[0].Port = 443
			c.server.put(t, sv)
			s := newTestSyncer(t, c.server)
			for range 3 {
				refreshed(t, s)
			}
			for _, in := range c.service("evil").Status.LoadBalancer.Ingress {
				if in.IP == "192.0.2.0" {
					t.Error("it keeps the address")
				}
			}
			c.want("web", "[192.0.2.0] Assigned")
		})
	}
}

// TestReleasesWhateverIsRefused: a tenant changes the type of a Service on which our finalizers cannot be removed. Its
// address is free for others all the same.
func TestReleasesWhateverIsRefused(t *testing.T) {
	c := newTenancy(t, lan())
	c.create(loadBalancer("evil"))
	c.want("evil", "[192.0.2.0] Assigned")
	c.server.invalid = func(sv *corev1.Service) bool {
		return sv.Name == "evil" && !slices.Contains(sv.Finalizers, v1beta1.FinalizerAddress)
	}
	sv := c.service("evil")
	sv.Spec.Type, sv.Status.LoadBalancer = corev1.ServiceTypeClusterIP, corev1.LoadBalancerStatus{}
	c.server.put(t, sv)
	web := loadBalancer("web")
	metav1.SetMetaDataAnnotation(&web.ObjectMeta, config.AnnotationAddresses, "192.0.2.0")
	c.server.put(t, web)
	s := newTestSyncer(t, c.server)
	for range 3 {
		refreshed(t, s)
	}
	c.want("web", "[192.0.2.0] Assigned")
}

// TestReleasesBesideOthersFinalizers: a Service with finalizers of others loses its addresses by a write that does not
// touch finalizers, which takes the API server too long if a tenant wrote many.
func TestReleasesBesideOthersFinalizers(t *testing.T) {
	for _, others := range []string{"", "example.org/other"} {
		c := newTenancy(t, lan())
		c.create(loadBalancer("evil"))
		sv := c.service("evil")
		sv.DeletionTimestamp = new(metav1.Now())
		if others != "" {
			sv.Finalizers = append(sv.Finalizers, others)
		}
		c.server.put(t, sv)
		s := newTestSyncer(t, c.server)
		syncOnce(t, s)
		if others == "" {
			if c.server.objects[servicesPath+"/evil"] != nil {
				t.Error("a Service with our finalizers only is not gone after the first write")
			}
			continue
		}
		if sv = c.service("evil"); len(sv.Status.LoadBalancer.Ingress) > 0 || len(sv.Finalizers) != 3 {
			t.Errorf("after the first write: %v, %v", sv.Status.LoadBalancer.Ingress, sv.Finalizers)
		}
		refreshed(t, s)
		if sv = c.service("evil"); !slices.Equal(sv.Finalizers, []string{others}) {
			t.Errorf("after the second write: %v", sv.Finalizers)
		}
	}
}

// tenancy is a cluster in which users edit Services as the built-in role edit allows: everything but the status.
type tenancy struct {
	*testing.T
	server *apiServer
	syncer *syncer
}

func newTenancy(t *testing.T, objects ...metav1.Object) *tenancy {
	t.Helper()
	return &tenancy{t, newServer(t, objects...), nil}
}

// create creates Services, which come without a status, whatever their user wrote.
func (c *tenancy) create(services ...*corev1.Service) {
	c.Helper()
	for _, sv := range services {
		sv.Status = corev1.ServiceStatus{}
		c.server.put(c.T, sv)
	}
	c.settle()
}

// edit edits a Service. The API server keeps the status, but empties status.loadBalancer when the type changes.
func (c *tenancy) edit(name string, change func(*corev1.Service)) {
	c.Helper()
	sv := c.service(name)
	status := *sv.Status.DeepCopy()
	change(sv)
	if sv.Spec.Type != corev1.ServiceTypeLoadBalancer {
		status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
	sv.Status = status
	c.server.put(c.T, sv)
	c.settle()
}

func (c *tenancy) service(name string) *corev1.Service { return c.server.service(c.T, name) }

// settle runs a new leader until it has nothing to write.
func (c *tenancy) settle() {
	c.Helper()
	c.syncer = newTestSyncer(c.T, c.server)
	for range 6 {
		c.server.landed()
		if refreshed(c.T, c.syncer); len(c.server.landed()) == 0 {
			return
		}
	}
	c.Error("the controller goes on writing")
}

// has returns what the status of a Service shows, and the reason of its condition.
func (c *tenancy) has(name string) string {
	c.Helper()
	sv := c.service(name)
	var out []string
	for _, in := range sv.Status.LoadBalancer.Ingress {
		out = append(out, in.IP)
	}
	reason := ""
	if a := meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionAddressAssigned); a != nil {
		reason = a.Reason
	}
	return fmt.Sprint(out, " ", reason)
}

func (c *tenancy) want(name, want string) {
	c.Helper()
	if got := c.has(name); got != want {
		c.Errorf("%s has %s, want %s", name, got, want)
	}
}

func writes(annotation string) func(*corev1.Service) {
	return func(sv *corev1.Service) {
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, v1beta1.AnnotationAssigned, annotation)
	}
}

// everything is an annotation that claims all addresses of 192.0.2.0/24, and that they were held.
func everything(name string) string {
	text := "for=default/" + name
	for i := range 256 {
		text += fmt.Sprintf(",192.0.2.%d=lan,192.0.2.%d#x", i, i)
	}
	return text
}

// TestForgedAnnotation: whatever a user writes to the annotation, no other Service waits, nothing is recorded as
// released, and no record of a release is lost.
func TestForgedAnnotation(t *testing.T) {
	retype := func(sv *corev1.Service) { sv.Spec.Type = corev1.ServiceTypeClusterIP }
	few := func(name string) string {
		return "for=default/" + name + ",192.0.2.9=lan,192.0.2.9#x,192.0.2.3#x,192.0.2.4#x,192.0.2.5#x," +
			"198.51.100.1=closed,198.51.100.1#x,198.51.100.2#x"
	}
	for name, claim := range map[string]func(string) string{"a few addresses": few, "everything": everything} {
		t.Run(name, func(t *testing.T) {
			closed := &v1beta1.IPAddressPool{
				ObjectMeta: metav1.ObjectMeta{Name: "closed", UID: "uid-closed"}, Spec: v1beta1.IPAddressPoolSpec{
					Addresses: []string{"198.51.100.1-198.51.100.4"}, ReuseDelay: &metav1.Duration{Duration: time.Hour},
					ServiceAllocation: &v1beta1.ServiceAllocation{Namespaces: []string{"others"}},
				},
			}
			c := newTenancy(t, waits(), closed)
			before := released("a", "b")
			c.server.put(t, before)
			c.create(loadBalancer("evil"))
			c.want("evil", "[192.0.2.0] Assigned")
			c.edit("evil", writes(claim("evil")))
			c.want("evil", "[192.0.2.0] Assigned")
			c.create(loadBalancer("victim"))
			c.want("victim", "[192.0.2.3] Assigned")
			c.edit("evil", func(sv *corev1.Service) { writes(claim("evil"))(sv); retype(sv) })
			got := map[string]string{}
			for _, r := range c.server.remembered(t) {
				got[r.Address] = r.Service
			}
			want := map[string]string{"192.0.2.1": "default/a", "192.0.2.2": "default/b", "192.0.2.0": "default/evil"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the pool remembers (-want +got):\n%s", diff)
			}
			var m v1beta1.PoolMemory
			if c.server.get(t, memoriesPath+"/closed", &m); len(m.Status.Released) > 0 {
				t.Errorf("a pool that he may not use remembers %v", m.Status.Released)
			}
		})
	}
}

// TestForgedTerms: a user writes the digest of his new terms, which a twin shows, where the digest of the former stood.
// The other sharers keep the address: he clashes with them.
func TestForgedTerms(t *testing.T) {
	pool := lan()
	pool.Spec.Sharing = &v1beta1.Sharing{Scope: v1beta1.ShareCluster}
	sharer := func(name string, port int32, age int64) *corev1.Service {
		sv := loadBalancer(name)
		sv.CreationTimestamp, sv.Spec.Ports[0].Port = metav1.Unix(age, 0), port
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationSharingKey, "k")
		return sv
	}
	c := newTenancy(t, pool)
	c.create(sharer("evil", 8080, 1), sharer("victim", 443, 2))
	c.want("victim", "[192.0.2.0] Assigned")
	twin := sharer("evil", 443, 1)
	c2 := newTenancy(t, lan())
	c2.create(twin)
	digest := regexp.MustCompile("#[0-9a-z]+").FindString(meta.FindStatusCondition(c2.service("evil").Status.Conditions,
		v1beta1.ConditionAddressRecord).Message)
	c.edit("evil", func(sv *corev1.Service) {
		sv.Spec.Ports[0].Port = 443
		writes("for=default/evil,192.0.2.0=lan,192.0.2.0" + digest)(sv)
	})
	c.want("victim", "[192.0.2.0] Assigned")
	c.want("evil", "[] PortClash")
}

// TestPastedBack: a user restores the annotation from when the Service held another address. The present holder of that
// address keeps it, and nothing is released.
func TestPastedBack(t *testing.T) {
	pool := lan()
	c := newTenancy(t, pool)
	c.create(loadBalancer("evil"))
	c.want("evil", "[192.0.2.0] Assigned")
	past := c.service("evil").Annotations[v1beta1.AnnotationAssigned]
	c.edit("evil", func(sv *corev1.Service) {
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationAddresses, "192.0.2.7")
	})
	c.want("evil", "[192.0.2.7] Assigned")
	c.create(loadBalancer("victim", ""))
	c.edit("victim", func(sv *corev1.Service) {
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationAddresses, "192.0.2.0")
	})
	c.want("victim", "[192.0.2.0] Assigned")
	remembered := c.server.remembered(t)
	c.edit("evil", writes(past))
	c.want("victim", "[192.0.2.0] Assigned")
	c.want("evil", "[192.0.2.7] Assigned")
	c.edit("evil", func(sv *corev1.Service) { writes(past)(sv); delete(sv.Annotations, config.AnnotationAddresses) })
	c.want("victim", "[192.0.2.0] Assigned")
	c.want("evil", "[192.0.2.7] Assigned")
	if diff := cmp.Diff(remembered, c.server.remembered(t)); diff != "" {
		t.Errorf("the pool remembers (-before +after):\n%s", diff)
	}
}

// TestForgedOrigin: a speaker uses the source ranges of the pool that an address was removed from, whatever the
// annotation says.
func TestForgedOrigin(t *testing.T) {
	strict, open := lan(), lan()
	strict.Spec.SourceRanges = []string{"10.0.0.0/8"}
	open.Name, open.UID, open.Spec.Addresses = "open", "uid-open", []string{"198.51.100.0/24"}
	c := newTenancy(t, strict, open)
	c.create(loadBalancer("evil"))
	strict.Spec.Addresses = []string{"192.0.2.128/25"}
	c.server.put(t, strict)
	c.settle()
	c.want("evil", "[192.0.2.0] Assigned")
	for _, forged := range []string{
		"", "for=default/evil,192.0.2.0=open", "192.0.2.0=open,192.0.2.0#x", "for=default/evil,192.0.2.0=",
		"for=another/one,192.0.2.0=open",
	} {
		sv := c.service("evil")
		writes(forged)(sv)
		state, _ := config.Compile(config.Objects{
			Pools: []*v1beta1.IPAddressPool{strict, open}, Services: []*corev1.Service{sv},
		}, config.Options{Default: true})
		frontends := plan.Frontends(state)
		if len(frontends) != 1 || fmt.Sprint(frontends[0].Allow) != "[10.0.0.0/8]" {
			t.Errorf("%q: the frontends are %+v", forged, frontends)
		}
	}
}

// TestReplaceOfManyRetained: 300 addresses were removed from their pool, more than it can list, and all their Services
// are replaced.
func TestReplaceOfManyRetained(t *testing.T) {
	pool := lan()
	pool.Spec.Addresses = []string{"192.0.2.0/24", "198.51.100.0/24"}
	c := newTenancy(t, pool)
	const count = 300
	name := func(i int) string { return fmt.Sprintf("s%03d", i) }
	for i := range count {
		c.server.put(t, loadBalancer(name(i)))
	}
	c.settle()
	pool.Spec.Addresses = []string{"203.0.113.0/24"}
	c.server.put(t, pool)
	c.settle()
	before := map[string]string{}
	for i := range count {
		before[name(i)] = c.has(name(i))
		sv := c.service(name(i))
		sv.Annotations, sv.Finalizers = nil, nil
		c.server.put(t, sv)
	}
	c.settle()
	for i := range count {
		c.want(name(i), before[name(i)])
	}
	if !strings.HasSuffix(before[name(0)], "] Assigned") {
		t.Errorf("the first has %s", before[name(0)])
	}
	var after v1beta1.IPAddressPool
	if c.server.get(t, poolsPath+"/lan", &after); after.Status.RetainedCount != count {
		t.Errorf("the pool counts %d retained addresses", after.Status.RetainedCount)
	}
}

// TestRestoredEtcd: all objects are as they were before, statuses included.
func TestRestoredEtcd(t *testing.T) {
	c := newTenancy(t, waits())
	c.create(loadBalancer("a"), loadBalancer("b"))
	var backup map[string]map[string]any
	c.server.edit(func() { backup = maps.Clone(c.server.objects) })
	c.edit("a", func(sv *corev1.Service) { sv.Spec.Type = corev1.ServiceTypeClusterIP })
	c.create(loadBalancer("late"))
	c.want("late", "[192.0.2.2] Assigned")
	c.server.edit(func() { c.server.objects = backup })
	c.settle()
	c.want("a", "[192.0.2.0] Assigned")
	c.want("b", "[192.0.2.1] Assigned")
	if got := c.server.remembered(t); len(got) > 0 {
		t.Errorf("the pool remembers %v", got)
	}
}

// TestRestoredObjects: Services that are restored without a status, and with another UID, ask for what they had as for
// any other address: they get it where they may, and wait where another one has it.
func TestRestoredObjects(t *testing.T) {
	pool := lan()
	pool.Spec.AutoAssign = new(bool)
	closed := lan()
	closed.Name, closed.UID, closed.Spec.Addresses = "closed", "uid-closed", []string{"198.51.100.0/24"}
	closed.Spec.ServiceAllocation = &v1beta1.ServiceAllocation{Namespaces: []string{"others"}}
	auto := lan()
	auto.Name, auto.UID, auto.Spec.Addresses = "auto", "uid-auto", []string{"203.0.113.0/24"}
	c := newTenancy(t, pool, closed, auto)
	restored := func(name, annotation string) *corev1.Service {
		sv := loadBalancer(name)
		sv.UID = types.UID("restored-" + name)
		writes(annotation)(sv)
		// A status that was restored too is of another object.
		other := sv.DeepCopy()
		other.UID = "former"
		sv.Status.Conditions = []metav1.Condition{recorded(other, "192.0.2.66", "lan")}
		return sv
	}
	for _, sv := range []*corev1.Service{
		loadBalancer("free"), restored("held", "for=default/held,192.0.2.3=lan,192.0.2.3#x"),
		restored("older", "203.0.113.0=auto"), restored("copy", "for=default/held,192.0.2.3=lan"),
		restored("forbidden", "for=default/forbidden,198.51.100.1=closed"),
	} {
		c.server.put(t, sv)
	}
	c.settle()
	c.want("held", "[192.0.2.3] Assigned")
	c.want("older", "[203.0.113.0] Assigned")
	c.want("copy", "[203.0.113.1] Assigned")
	c.want("forbidden", "[203.0.113.2] Assigned")
	c.want("free", "[203.0.113.3] Assigned")
	c.create(restored("taken", "for=default/taken,192.0.2.3=lan"))
	c.want("taken", "[] AddressInUse")
	c.want("held", "[192.0.2.3] Assigned")
}
