package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// village is a dozen Services with what is decided about them, of which each step changes something.
type village struct {
	*rand.Rand
	compiler config.Compiler
	pool     *v1beta1.IPAddressPool
	services lb.Map[lb.Key, *corev1.Service]
	problems map[lb.Key]lb.Problem
	proxied  map[lb.Key]proxyCondition
	egress   map[lb.Key]egressCondition
}

func newVillage(seed uint64) *village {
	v := &village{
		Rand:     rand.New(rand.NewPCG(seed, 0)),
		pool:     lan(),
		problems: map[lb.Key]lb.Problem{},
		proxied:  map[lb.Key]proxyCondition{},
		egress:   map[lb.Key]egressCondition{},
	}
	for i := range 12 {
		v.put(loadBalancer(fmt.Sprint("s", i)))
	}
	return v
}

// put replaces the object of a Service.
func (v *village) put(sv *corev1.Service) {
	v.services = v.services.Put(config.KeyOf(sv), sv)
}

// one returns a copy of a Service.
func (v *village) one() *corev1.Service {
	keys := slices.Collect(v.services.Keys())
	return v.services.Of(keys[v.IntN(len(keys))]).DeepCopy()
}

// step changes one thing.
func (v *village) step(s *syncer) {
	sv := v.one()
	key := config.KeyOf(sv)
	text := fmt.Sprint("text ", v.IntN(3))
	switch v.IntN(13) {
	case 0:
		v.put(loadBalancer(fmt.Sprint("s", v.IntN(15))))
	case 1:
		if v.services.Len() > 8 {
			v.services = v.services.Without(key)
		}
	case 2:
		hostname := fmt.Sprintf("h%d.example.org", v.IntN(2))
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationHostname, hostname)
		v.put(sv)
	case 3:
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationRateLimit, fmt.Sprint(v.IntN(3)))
		v.put(sv)
	case 4:
		ranges := fmt.Sprintf("10.%d.0.0/16", v.IntN(3))
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationSourceRanges, ranges)
		v.put(sv)
	case 5: // another client edits the status
		sv.Status.Conditions = nil
		v.put(sv)
	case 6: // a version that differs in nothing
		v.put(sv)
	case 7:
		v.problems[key] = lb.Problem{
			Object:  config.ServiceObject(key),
			Reason:  []lb.Reason{lb.AnnotationIgnored, lb.NodesUnfiltered}[v.IntN(2)],
			Message: text,
		}
		if v.IntN(2) == 0 {
			delete(v.problems, key)
		}
	case 8:
		status := []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse}[v.IntN(2)]
		v.proxied[key] = proxyCondition{
			metav1.Condition{Type: v1beta1.ConditionProxied, Status: status, Reason: string(lb.Proxied), Message: text},
			v.IntN(2) == 0,
		}
		if v.IntN(2) == 0 {
			delete(v.proxied, key)
		}
	case 9:
		v.egress[key] = egressCondition{egressFault(text), v.IntN(2) == 0}
		if v.IntN(2) == 0 {
			delete(v.egress, key)
		}
	case 10:
		s.speakers.unfiltered.isKnown = !s.speakers.unfiltered.isKnown
	case 11:
		v.pool = v.pool.DeepCopy()
		v.pool.Spec.Addresses = []string{[]string{"192.0.2.0/24", "192.0.2.8/29", "198.51.100.0/30"}[v.IntN(3)]}
	case 12:
		v.pool = v.pool.DeepCopy()
		v.pool.Spec.SourceRanges = [][]string{nil, {"10.0.0.0/8"}, {"10.0.0.0/9"}}[v.IntN(3)]
	}
}

// run returns a run with new copies of all decisions.
func (v *village) run(s *syncer) *syncRun {
	d := &syncRun{
		objects: config.Objects{Pools: []*v1beta1.IPAddressPool{v.pool}, ServicesByKey: v.services},
		egress:  egressRun{conditions: map[lb.Key]*egressCondition{}},
	}
	d.state, d.problems = v.compiler.Compile(d.objects, s.options)
	d.state.Now = time.Now()
	d.result = ipam.Assign(d.state)
	d.frontends = plan.Frontends(restrictedServices(d.state, d.result.Assignments))
	d.problems = slices.Concat(d.problems, slices.Collect(maps.Values(v.problems)))
	d.proxied = make([]proxyCondition, len(d.state.Services))
	for i, svc := range d.state.Services {
		d.proxied[i] = v.proxied[svc.Key]
	}
	for key, c := range v.egress {
		d.egress.conditions[key] = &c
	}
	return d
}

// write carries out an update.
func (v *village) write(sv *corev1.Service, u k8s.ServiceUpdate) {
	sv = sv.DeepCopy()
	if u.SetAddresses {
		sv.Status.LoadBalancer.Ingress = nil
		for _, a := range u.Addresses {
			in := corev1.LoadBalancerIngress{IP: a.String(), Hostname: u.Hostname}
			if u.ProxyMode {
				in.IPMode = new(corev1.LoadBalancerIPModeProxy)
			}
			sv.Status.LoadBalancer.Ingress = append(sv.Status.LoadBalancer.Ingress, in)
		}
	}
	for _, c := range u.Conditions {
		meta.SetStatusCondition(&sv.Status.Conditions, c)
	}
	for _, name := range u.RemoveConditions {
		meta.RemoveStatusCondition(&sv.Status.Conditions, name)
	}
	for name, value := range u.Annotations {
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, name, value)
		if value == "" {
			delete(sv.Annotations, name)
		}
	}
	for name, isWanted := range u.Finalizers {
		sv.Finalizers = slices.DeleteFunc(sv.Finalizers, func(f string) bool { return f == name })
		if isWanted {
			sv.Finalizers = append(sv.Finalizers, name)
		}
	}
	v.put(sv)
}

// TestStatuses checks over random histories that what is remembered of each Service is what the function returns, that
// nothing remembered is changed in place, and that few are computed.
func TestStatuses(t *testing.T) {
	taken, all, written := 0, 0, 0
	for seed := range uint64(20) {
		v, s := newVillage(seed), &syncer{options: config.Options{Default: true}}
		var before, stays []*serviceStatus
		for step := range 200 {
			v.step(s)
			d := v.run(s)
			remembered := map[*lb.Service]**serviceStatus{}
			for _, svc := range d.state.Services {
				remembered[svc] = s.statuses.Of(svc)
			}
			s.updateStatuses(d)
			for _, svc := range d.state.Services {
				if s.statuses.Of(svc) == remembered[svc] {
					taken++
				}
			}
			all += len(d.state.Services)

			checkStatuses(t, s, d)
			if !reflect.DeepEqual(before, stays) {
				t.Errorf("what was remembered has changed: %+v, want %+v", before, stays)
			}
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}

			inputs := s.serviceInputs(d)
			before, stays = nil, nil
			for _, svc := range d.state.Services {
				status := *s.statuses.Of(svc)
				before = append(before, status)
				stays = append(stays, inputs(svc).status(s.options))
				if status != nil && v.IntN(3) > 0 {
					written++
					v.write(status.update.Service, status.update)
				}
			}
		}
	}
	t.Logf("of %d statuses %d were remembered; %d were written", all, taken, written)
	if taken < all/2 || written < all/50 {
		t.Error("these are too few to show anything")
	}
}
