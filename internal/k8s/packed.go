package k8s

import (
	"fmt"
	"hash/maphash"
	"reflect"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/klauspost/compress/s2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
)

type (
	heldService = config.Held[corev1.Service]
	heldSlice   = config.Held[discoveryv1.EndpointSlice]
)

// packed is an object in the API's encoding, compressed: a tenth as large as when it is decoded, and nothing for the
// garbage collector to look at. Every speaker, controller and proxy has all Services and endpoints. They read a Service
// only when it changed or is written; a controller reads endpoints when a node is dead.
type packed[T any, P wire[T]] struct {
	// ObjectMeta is nil: nothing but what is below is asked of an object that is kept so.
	*metav1.ObjectMeta
	namespace, name, version string
	uid                      types.UID
	deletion                 *metav1.Time
	// decides is a digest of what of a Service decides for this daemon.
	decides uint64
	// asksEgress reports whether pods shall send from the addresses of a Service.
	asksEgress bool
	body       string
}

// usual is how a Service is mostly encoded: a few bytes stand for what an object has of it. Another text would do, but
// takes more room.
var usual = s2.MakeDict(encoding(&corev1.Service{
	ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{
			discoveryv1.LabelServiceName: "",
			"app.kubernetes.io/name":     "",
			"app.kubernetes.io/instance": "",
		},
		Annotations: map[string]string{v1beta1.AnnotationAssigned: ""},
		Finalizers:  []string{v1beta1.FinalizerAddress, StandardFinalizer},
	},
	Spec: corev1.ServiceSpec{
		Type:                  corev1.ServiceTypeLoadBalancer,
		SessionAffinity:       corev1.ServiceAffinityNone,
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		IPFamilyPolicy:        new(corev1.IPFamilyPolicySingleStack),
		InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
		Ports:                 []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
	},
	Status: corev1.ServiceStatus{Conditions: []metav1.Condition{
		{
			Type:    v1beta1.ConditionAddressAssigned,
			Status:  metav1.ConditionTrue,
			Reason:  string(lb.Assigned),
			Message: " from pool ",
		},
		{Type: v1beta1.ConditionAddressRecord, Status: metav1.ConditionTrue, Reason: "Recorded", Message: "uid="},
		{
			Type:    v1beta1.ConditionAnnouncedL2,
			Status:  metav1.ConditionTrue,
			Reason:  string(lb.Announced),
			Message: " by node ",
		},
		{Type: v1beta1.ConditionAnnouncers, Status: metav1.ConditionTrue, Reason: string(lb.Announced)},
	}},
}), nil)

func encoding[T wire[S], S any](o T) []byte {
	body, err := o.Marshal()
	utilruntime.Must(err)
	return body
}

// wire is an object that the API server sends in protobuf.
type wire[T any] interface {
	*T
	metav1.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// pack returns an object trimmed and packed; what is not of its kind stays, as what is packed already and tombstones.
func pack[T any, P wire[T]](from any) (any, error) {
	o, is := from.(P)
	if !is {
		return from, nil
	}
	if _, err := trim(o); err != nil {
		return nil, err
	}
	p := &packed[T, P]{namespace: o.GetNamespace(), name: o.GetName(), version: o.GetResourceVersion(), uid: o.GetUID(),
		deletion: o.GetDeletionTimestamp()}
	p.label(o, &packed[T, P]{})
	body, err := o.Marshal()
	p.label(o, p)
	p.body = string(usual.Encode(nil, body))
	return p, err
}

// packing packs Services with a digest of what decides.
func packing(decides func(*corev1.Service) uint64) cache.TransformFunc {
	return func(o any) (any, error) {
		p, err := pack[corev1.Service](o)
		if s, is := o.(*corev1.Service); is && err == nil {
			p.(*packedService).decides, p.(*packedService).asksEgress = decides(s), config.AsksEgress(s)
		}
		return p, err
	}
}

// held packs a Service that nobody else reads.
func held(s *corev1.Service) heldService {
	p, err := pack[corev1.Service](s)
	if err != nil {
		panic(fmt.Sprintf("k8s: service %s cannot be packed: %v", config.KeyOf(s), err))
	}
	return p.(heldService)
}

// label gives an object the names of another one, which are kept apart.
func (*packed[T, P]) label(o P, as *packed[T, P]) {
	o.SetNamespace(as.namespace)
	o.SetName(as.name)
	o.SetResourceVersion(as.version)
	o.SetUID(as.uid)
}

// share takes the texts that the version before has: where thousands change at once, small holes would be left
// everywhere.
func (p *packed[T, P]) share(have any) {
	if before, is := have.(*packed[T, P]); is && before.uid == p.uid {
		p.name, p.uid = before.name, before.uid
	}
}

// Read returns the object. It has room beside it, since most are read once: a Service would be as large as what is made
// of it and stays, and leave holes between.
func (p *packed[T, P]) Read() *T {
	o := P(&new(struct {
		object T
		_      [64]byte
	}).object)
	body, err := usual.Decode(nil, []byte(p.body))
	if err == nil {
		err = o.Unmarshal(body)
	}
	p.label(o, p)
	if err == nil {
		_, err = trim(o)
	}
	if err != nil {
		panic(fmt.Sprintf("k8s: %s/%s was packed and cannot be read: %v", p.namespace, p.name, err))
	}
	return o
}

func (p *packed[T, P]) GetNamespace() string               { return p.namespace }
func (p *packed[T, P]) GetName() string                    { return p.name }
func (p *packed[T, P]) GetResourceVersion() string         { return p.version }
func (p *packed[T, P]) GetUID() types.UID                  { return p.uid }
func (p *packed[T, P]) GetDeletionTimestamp() *metav1.Time { return p.deletion }
func (p *packed[T, P]) GetFinalizers() []string            { return P(p.Read()).GetFinalizers() }

type (
	packedService = packed[corev1.Service, *corev1.Service]
	packedSlice   = packed[discoveryv1.EndpointSlice, *discoveryv1.EndpointSlice]
)

// packSlice packs an EndpointSlice without the names of its pods, which are asked of proxies only.
func (k *Cluster) packSlice(o any) (any, error) {
	if s, is := o.(*discoveryv1.EndpointSlice); is && config.ServiceOf(s) != k.config.Proxies {
		for i := range s.Endpoints {
			s.Endpoints[i].TargetRef = nil
		}
	}
	return pack[discoveryv1.EndpointSlice](o)
}

// packPods packs an EndpointSlice with no more than its pods.
func packPods(o any) (any, error) {
	if s, is := o.(*discoveryv1.EndpointSlice); is {
		s.Ports = nil
		for i := range s.Endpoints {
			s.Endpoints[i].Addresses = nil
		}
	}
	return pack[discoveryv1.EndpointSlice](o)
}

// decides returns a digest of what of a Service decides for a speaker or a proxy, 0 if it neither has an address nor
// had one that is not released yet. Speakers write conditions themselves.
func decides(s *corev1.Service) uint64 {
	if len(s.Status.LoadBalancer.Ingress) == 0 &&
		!meta.IsStatusConditionTrue(s.Status.Conditions, v1beta1.ConditionAddressAssigned) {
		return 0
	}
	one := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			UID:               s.UID,
			Labels:            s.Labels,
			Annotations:       s.Annotations,
			DeletionTimestamp: s.DeletionTimestamp,
		},
		Spec:   s.Spec,
		Status: corev1.ServiceStatus{LoadBalancer: s.Status.LoadBalancer},
	}
	if c := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionAddressRecord); c != nil {
		one.Status.Conditions = append(one.Status.Conditions, metav1.Condition{Type: c.Type, Message: c.Message})
	}
	if c := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionProxied); c != nil {
		one.Status.Conditions = append(
			one.Status.Conditions,
			metav1.Condition{Type: c.Type, Status: c.Status, Reason: c.Reason},
		)
	}
	return digest(&one)
}

// digest is never 0.
func digest(s *corev1.Service) uint64 { return maphash.Bytes(interned.seed, encoding(s)) | 1 }

// maxUnread is how many changes that decide nothing a speaker leaves for the next plan to read. The plan for the death
// of a node must find little: to read a thousand conditions took 70 ms of the failover (three speakers on two cores).
const maxUnread = 64

// shownBy returns what a Service shows of addresses, nothing if there is no Service.
func shownBy(h heldService) (none corev1.LoadBalancerStatus) {
	if h == nil {
		return none
	}
	return h.Read().Status.LoadBalancer
}

// sameHeld reports whether a change may wait for the next plan: the same decides, and a speaker has not left too much
// unread. It counts the Services whose addresses change.
func (k *Cluster) sameHeld(a, b heldService) bool {
	of := func(h heldService) (digest uint64) {
		if h != nil {
			digest = h.(*packedService).decides
		}
		return digest
	}
	k.egress.observe(b)
	same := of(a) == of(b)
	if !same && a != nil && !reflect.DeepEqual(shownBy(a), shownBy(b)) {
		k.burst.Allow()
	}
	if same && k.config.Speaker {
		k.unread++
		return k.unread%maxUnread != 0
	}
	return same
}
