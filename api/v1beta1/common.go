package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionValid is False, with a reason and a message, if a part of an object is not in force. The usable parts are in
// force.
const ConditionValid = "Valid"

// Status is the status of kinds that only have conditions.
type Status struct {
	// Conditions of the object. Valid reports whether the whole object is in force.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z') && (!has(c.observedGeneration) || c.observedGeneration <= 4611686018427387904))",message="the times and generations of conditions must be such as Kubernetes writes"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// LabelSelectors selects the objects that match at least one of its selectors.
//
// +kubebuilder:validation:MaxItems=64
// +listType=atomic
type LabelSelectors []metav1.LabelSelector

// Count is a number of objects, at most 2^31-1.
//
// +kubebuilder:validation:Minimum=0
// +kubebuilder:validation:Maximum=2147483647
type Count = int32

// AddressCount is a number of addresses, at most 2^62.
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
	// ConditionAddressAssigned reports which addresses a Service has from which pools, or why it has none. The controller
	// writes it.
	ConditionAddressAssigned = "holdfast.dev/AddressAssigned"
	// ConditionAnnouncedL2 reports which node answers ARP and NDP, or why none does. The speaker that owns the Service's
	// address writes it.
	ConditionAnnouncedL2 = "holdfast.dev/AnnouncedL2"
	// ConditionAnnouncers names the node that announces each address, as "ADDRESS=NODE" joined by commas. Speakers read
	// its message. It is written along with ConditionAnnouncedL2 while a node announces. An administrator who migrates
	// Services from another load balancer writes it with status Unknown and only a node's name, for all addresses: open
	// connections are then relayed to that node.
	ConditionAnnouncers = "holdfast.dev/Announcers"
	// ConditionAnnouncedBGP reports which nodes advertise the Service, or why none does. Of the speakers that advertise
	// it, the one with the lowest name writes the condition.
	ConditionAnnouncedBGP = "holdfast.dev/AnnouncedBGP"
	// ConditionFiltered reports which sources may reach the Service. It is False if some of its ranges or limits are
	// invalid, or if nodes enforce nothing (NodesUnfiltered). The controller writes it.
	ConditionFiltered = "holdfast.dev/Filtered"
	// ConditionFilterEnforced is False if a node cannot enforce the Service's ranges; status.problems of the node's
	// SpeakerState says why. It is written by the speaker that writes AnnouncedL2, or else AnnouncedBGP.
	ConditionFilterEnforced = "holdfast.dev/FilterEnforced"
	// ConditionAnnotationsHonoured is False if annotations have no effect, and lists them. The controller writes it.
	ConditionAnnotationsHonoured = "holdfast.dev/AnnotationsHonoured"
	// ConditionProxied is True while proxies serve the Service's addresses. The controller writes it on Services that
	// ask for proxies or that proxies serve. Speakers and proxies read it.
	ConditionProxied = "holdfast.dev/Proxied"
	// ConditionProxyRecord holds the Service's UID and the settings that were accepted last: an invalid setting keeps the
	// last accepted value. The controller writes it along with ConditionProxied.
	ConditionProxyRecord = "holdfast.dev/ProxyRecord"
	// ConditionEgress is True while the Service's pods send from its addresses, and False with the reason while some or
	// all of them do not. The controller writes it on Services that ask for it by holdfast.dev/egress.
	ConditionEgress = "holdfast.dev/Egress"
	// ConditionWritten is False while the API server refuses a part of what the controller writes to the Service. Its
	// message has that part and the error of the API server. The controller writes it.
	ConditionWritten = "holdfast.dev/Written"
	// ConditionAddressRecord proves which addresses a Service or FloatingIP holds: users have no right to write a status.
	// It has the object's UID and, for each address, the pool that it was assigned from and a digest of the terms under
	// which it may be shared. On an object with another UID it is void. The controller writes it along with the addresses.
	ConditionAddressRecord = "holdfast.dev/AddressRecord"
)

// AnnotationHostnameShown on a Service records the host name that Holdfast wrote to its status, so that Holdfast
// removes only its own.
const AnnotationHostnameShown = "holdfast.dev/hostname-shown"

// FinalizerAddress is set on a Service or FloatingIP while it holds an address, and on the pool of that address.
const FinalizerAddress = "holdfast.dev/address"

// AnnotationReadyWithoutSessions on a Node, with the value true, makes a starting speaker ready even though BGP
// sessions of its predecessor are down. A rolling update then continues past a node whose router is away.
const AnnotationReadyWithoutSessions = "holdfast.dev/ready-without-sessions"

// AnnotationAssigned preserves the addresses of a Service or FloatingIP in backups, as "ADDRESS=POOL" joined by commas.
// A restored object requests one address of each family, as if its spec did. The first entry, "for=NAMESPACE/NAME",
// names the object, so that the annotation is void in a copied manifest. It proves nothing, since users can write it.
const AnnotationAssigned = "holdfast.dev/assigned"
