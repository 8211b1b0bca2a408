package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// oneMore times the decision of the controller's Ledger for one more Service beside a number
// of Services with addresses: from a whole new State, as config.Compile makes it from the
// objects, to the whole Result. In each round the Ledger is new, has decided for the others
// once, and does not know the new Service.
func oneMore(services int) func() ([]time.Duration, error) {
	return func() ([]time.Duration, error) {
		objects, err := assigned(services)
		if err != nil {
			return nil, err
		}
		more := objects
		more.Services = append(slices.Clone(objects.Services), serviceObject(services))
		var times []time.Duration
		for range assignmentRounds {
			var ledger ipam.Ledger
			ledger.Assign(compile(objects))
			s := compile(more)
			place := slices.IndexFunc(s.Services, func(svc lb.Service) bool { return len(svc.Addresses) == 0 })
			start := time.Now()
			result := ledger.Assign(s)
			times = append(times, time.Since(start))
			if ledger.Carried() != services || len(result.Assignments) != services+1 || len(result.Assignments[place].Addresses) != 1 {
				return nil, errors.New("this is not one Service more")
			}
		}
		return times, nil
	}
}

func compile(o config.Objects) lb.State {
	s, _ := config.Compile(o, config.Options{Default: true})
	s.Now = time.Now()
	return s
}

// assigned returns a pool and Services whose statuses contain their assigned addresses.
func assigned(services int) (config.Objects, error) {
	o := config.Objects{Pools: []*v1beta1.IPAddressPool{{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec:       v1beta1.IPAddressPoolSpec{Addresses: []string{"10.0.0.0/16"}},
	}}}
	for i := range services {
		o.Services = append(o.Services, serviceObject(i))
	}
	s := compile(o)
	given := map[lb.Key]*ipam.Assignment{}
	for _, a := range ipam.Assign(s).Assignments {
		given[a.Service] = a
	}
	for i, sv := range o.Services {
		a := given[lb.Key{Namespace: sv.Namespace, Name: sv.Name}]
		if len(a.Record) != 1 {
			return o, errors.New("a Service got no address")
		}
		sv.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: a.Addresses[0].String()}}
		sv.Annotations = map[string]string{v1beta1.AnnotationAssigned: config.Assigned(a.Service, a.Record)}
		recorded, _ := config.Record(sv.UID, a.Record)
		sv.Status.Conditions = append(sv.Status.Conditions, recorded)
		sv.ResourceVersion = strconv.Itoa(1_000_000 + i)
	}
	return o, nil
}

// serviceObject makes the i-th Service to arrive; its name sorts anywhere among the others.
func serviceObject(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "bench", Name: fmt.Sprintf("s%04d-%d", i*7919%10_007, i), UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)),
			ResourceVersion: strconv.Itoa(1 + i), CreationTimestamp: metav1.Unix(int64(i), 0),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{fmt.Sprintf("10.96.%d.%d", i/256%256, i%256)},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}
