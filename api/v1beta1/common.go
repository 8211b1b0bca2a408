package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionValid is False, with a reason and a sentence, if a part of an object is not in force. Its usable parts are.
const ConditionValid = "Valid"

// Status is what Holdfast reports about objects without a status type of their own.
type Status struct {
	// Conditions of the object. Valid says whether all of it is in force.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z') && (!has(c.observedGeneration) || c.observedGeneration <= 4611686018427387904))",message="the times and generations of conditions must be such as Kubernetes writes"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// LabelSelectors are alternatives: what matches one of them is selected.
//
// +kubebuilder:validation:MaxItems=64
// +listType=atomic
type LabelSelectors []metav1.LabelSelector

// Count is of things.
//
// +kubebuilder:validation:Minimum=0
// +kubebuilder:validation:Maximum=2147483647
type Count = int32

// AddressCount is of addresses, at most 2^62.
//
// +kubebuilder:validation:Minimum=0
// +kubebuilder:validation:Maximum=4611686018427387904
type AddressCount = int64

// Words is a set of short words.
//
// +kubebuilder:validation:MaxItems=32
// +kubebuilder:validation:items:MinLength=1
// +kubebuilder:validation:items:MaxLength=63
// +listType=set
type Words []string

// Conditions on Services. Each has one writer at a time.
const (
	// ConditionAddressAssigned is written by the controller: which addresses from which pools, or why none.
	ConditionAddressAssigned = "holdfast.dev/AddressAssigned"
	// ConditionAnnouncedL2 is written by the speaker that owns the Service's address: which node answers, or why none does.
	ConditionAnnouncedL2 = "holdfast.dev/AnnouncedL2"
	// ConditionAnnouncers is written along with ConditionAnnouncedL2 while a node announces. Its message, which speakers read,
	// names the node that announces each address, as "ADDRESS=NODE" joined by commas. Who moves Services from another load
	// balancer writes it with the status Unknown and the name of a node alone, for all addresses: open connections are relayed there.
	ConditionAnnouncers = "holdfast.dev/Announcers"
	// ConditionAnnouncedBGP is written by the lowest-named speaker that advertises the Service: which nodes do, or why none does.
	ConditionAnnouncedBGP = "holdfast.dev/AnnouncedBGP"
	// ConditionFiltered is written by the controller: who may reach the Service; False if some of its ranges or
	// limits cannot be read, or if nodes enforce nothing (NodesUnfiltered).
	ConditionFiltered = "holdfast.dev/Filtered"
	// ConditionFilterEnforced is written by the speaker that writes AnnouncedL2, or else AnnouncedBGP: False if
	// its node cannot enforce the Service's ranges; status.problems of its SpeakerState says why.
	ConditionFilterEnforced = "holdfast.dev/FilterEnforced"
	// ConditionAnnotationsHonoured is written by the controller: False lists the annotations without effect.
	ConditionAnnotationsHonoured = "holdfast.dev/AnnotationsHonoured"
	// ConditionProxied is written by the controller on Services that ask for proxies, or that proxies serve: True while proxies serve
	// their addresses. Speakers and proxies read it.
	ConditionProxied = "holdfast.dev/Proxied"
	// ConditionProxyRecord is written by the controller along with ConditionProxied: the Service's UID, and the settings that were
	// accepted last. A setting that cannot be read keeps that value.
	ConditionProxyRecord = "holdfast.dev/ProxyRecord"
	// ConditionWritten is written by the controller: False while the API server refuses a part of what the controller
	// writes to the Service, with that part and the API server's words.
	ConditionWritten = "holdfast.dev/Written"
	// ConditionAddressRecord is written by the controller, along with the addresses, on Services and FloatingIPs: the object's
	// UID, and of each address that it holds the pool from which it was assigned and a digest of the terms under which it may
	// be shared. Users have no right to write a status: so this is proof. For an object with another UID it means nothing.
	ConditionAddressRecord = "holdfast.dev/AddressRecord"
)

// AnnotationHostnameShown records on a Service the host name in its status that Holdfast wrote, and can so remove.
const AnnotationHostnameShown = "holdfast.dev/hostname-shown"

// FinalizerAddress is on a Service or FloatingIP while it holds an address, and on the pool of that address.
const FinalizerAddress = "holdfast.dev/address"

// AnnotationReadyWithoutSessions on a Node, with the value true, makes a starting speaker ready although sessions that the speaker
// before it had are down: an update then goes on past a node whose router is away.
const AnnotationReadyWithoutSessions = "holdfast.dev/ready-without-sessions"

// AnnotationAssigned carries the addresses of a Service or FloatingIP through a backup, as "ADDRESS=POOL" joined by commas. A
// restored object asks for one of each family, like for an address in its spec. The first entry, "for=NAMESPACE/NAME", names
// the object: in a copied manifest the annotation means nothing. Users can write it: it proves nothing.
const AnnotationAssigned = "holdfast.dev/assigned"
