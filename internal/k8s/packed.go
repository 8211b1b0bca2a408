package k8s

import (
	"fmt"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/klauspost/compress/s2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

type heldSlice = config.Held[discoveryv1.EndpointSlice]

// packed is an object in the API's encoding, compressed. It has a tenth of the size of a decoded object, and no
// pointers for the garbage collector. Every speaker, controller and proxy has all endpoints. A controller reads them
// when a node is dead.
type packed[T any, P protobufObject[T]] struct {
	// ObjectMeta is nil. It completes the interface, and only the methods below are called.
	*metav1.ObjectMeta
	namespace string
	name      string
	version   string
	uid       types.UID
	deletion  *metav1.Time
	// body is the compressed encoding.
	body string
}

// dictionary is the dictionary for compression: a typical Service. Any other text would work, with larger results.
var dictionary = s2.MakeDict(encoding(&corev1.Service{
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
		Ports: []corev1.ServicePort{{
			Name:     "http",
			Protocol: corev1.ProtocolTCP,
			Port:     80,
		}},
	},
	Status: corev1.ServiceStatus{Conditions: []metav1.Condition{
		{
			Type:    v1beta1.ConditionAddressAssigned,
			Status:  metav1.ConditionTrue,
			Reason:  string(lb.Assigned),
			Message: " from pool ",
		},
		{
			Type:    v1beta1.ConditionAddressRecord,
			Status:  metav1.ConditionTrue,
			Reason:  "Recorded",
			Message: "uid=",
		},
		{
			Type:    v1beta1.ConditionAnnouncedL2,
			Status:  metav1.ConditionTrue,
			Reason:  string(lb.Announced),
			Message: " by node ",
		},
		{
			Type:   v1beta1.ConditionAnnouncers,
			Status: metav1.ConditionTrue,
			Reason: string(lb.Announced),
		},
	}},
}), nil)

// encoding returns an object in the API's encoding.
func encoding[T protobufObject[S], S any](o T) []byte {
	body, err := o.Marshal()
	utilruntime.Must(err)
	return body
}

// protobufObject is an object that the API server sends in protobuf.
type protobufObject[T any] interface {
	*T
	metav1.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// pack returns an object trimmed and packed. It returns anything else as it is, such as packed objects and tombstones.
func pack[T any, P protobufObject[T]](from any) (any, error) {
	o, ok := from.(P)
	if !ok {
		return from, nil
	}

	_, err := trim(o)
	if err != nil {
		return nil, err
	}

	p := &packed[T, P]{
		namespace: o.GetNamespace(),
		name:      o.GetName(),
		version:   o.GetResourceVersion(),
		uid:       o.GetUID(),
		deletion:  o.GetDeletionTimestamp(),
	}

	unnamed := &packed[T, P]{}
	unnamed.label(o)
	body, err := o.Marshal()
	p.label(o)
	p.body = string(dictionary.Encode(nil, body))
	return p, err
}

// label sets the names of an object, which are not part of the body.
func (p *packed[T, P]) label(o P) {
	o.SetNamespace(p.namespace)
	o.SetName(p.name)
	o.SetResourceVersion(p.version)
	o.SetUID(p.uid)
}

// share takes over the texts of the version before. Otherwise thousands of changes at once would fragment the heap.
func (p *packed[T, P]) share(have any) {
	before, ok := have.(*packed[T, P])
	if ok && before.uid == p.uid {
		p.name = before.name
		p.uid = before.uid
	}
}

// Read returns the object. Most results are read once, so the padding puts them into another size class than the
// compiled Service that stays: freed results leave no holes between those.
func (p *packed[T, P]) Read() *T {
	o := P(&new(struct {
		object T
		_      [64]byte
	}).object)
	err := p.decode(o)
	if err != nil {
		panic(fmt.Sprintf("k8s: %s/%s was packed and cannot be read: %v", p.namespace, p.name, err))
	}

	return o
}

// decode sets o to the object.
func (p *packed[T, P]) decode(o P) error {
	body, err := dictionary.Decode(nil, []byte(p.body))
	if err != nil {
		return err
	}
	if err := o.Unmarshal(body); err != nil {
		return err
	}

	p.label(o)
	_, err = trim(o)
	return err
}

// These methods of metav1.Object do not decode the object, except for GetFinalizers.

func (p *packed[T, P]) GetNamespace() string               { return p.namespace }
func (p *packed[T, P]) GetName() string                    { return p.name }
func (p *packed[T, P]) GetResourceVersion() string         { return p.version }
func (p *packed[T, P]) GetUID() types.UID                  { return p.uid }
func (p *packed[T, P]) GetDeletionTimestamp() *metav1.Time { return p.deletion }
func (p *packed[T, P]) GetFinalizers() []string            { return P(p.Read()).GetFinalizers() }

type packedSlice = packed[discoveryv1.EndpointSlice, *discoveryv1.EndpointSlice]

// packSlice packs an EndpointSlice. It drops the names of pods that are no proxies.
func (k *Cluster) packSlice(o any) (any, error) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	isOfOthers := ok && config.ServiceOf(s) != k.config.Proxies
	if isOfOthers {
		for i := range s.Endpoints {
			s.Endpoints[i].TargetRef = nil
		}
	}

	return pack[discoveryv1.EndpointSlice](o)
}

// packPods packs the pods of an EndpointSlice, without ports and addresses.
func packPods(o any) (any, error) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if ok {
		s.Ports = nil
		for i := range s.Endpoints {
			s.Endpoints[i].Addresses = nil
		}
	}

	return pack[discoveryv1.EndpointSlice](o)
}
