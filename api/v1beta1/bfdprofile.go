package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BFDProfile configures sessions of Bidirectional Forwarding Detection (RFC 5880). A BGPPeer names it in bfdProfile.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=bfdp,categories=holdfast
// +kubebuilder:printcolumn:name="Receive ms",type=integer,JSONPath=`.spec.receiveInterval`
// +kubebuilder:printcolumn:name="Transmit ms",type=integer,JSONPath=`.spec.transmitInterval`
// +kubebuilder:printcolumn:name="Multiplier",type=integer,JSONPath=`.spec.detectMultiplier`
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BFDProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BFDProfileSpec `json:"spec,omitempty"`
	Status Status         `json:"status,omitempty"`
}

// BFDProfileSpec has the fields of MetalLB. All intervals are in milliseconds.
type BFDProfileSpec struct {
	// ReceiveInterval in milliseconds is the shortest interval at which the router may send. Default 300.
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=60000
	ReceiveInterval *int32 `json:"receiveInterval,omitempty"`

	// TransmitInterval in milliseconds is the shortest interval at which speakers send. Default 300.
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=60000
	TransmitInterval *int32 `json:"transmitInterval,omitempty"`

	// DetectMultiplier is the number of successive packets of a speaker that the router may miss before the session goes
	// down. Default 3.
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=255
	DetectMultiplier *int32 `json:"detectMultiplier,omitempty"`

	// EchoInterval in milliseconds has no effect. MetalLB uses it in echo mode.
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=60000
	EchoInterval *int32 `json:"echoInterval,omitempty"`

	// EchoMode must be false: speakers send no Echo packets.
	// +kubebuilder:validation:XValidation:rule="!self",message="echo mode is not supported: remove echoMode, and choose shorter intervals"
	EchoMode bool `json:"echoMode,omitempty"`

	// PassiveMode makes speakers wait for the router's first packet. At least one side must not be passive.
	PassiveMode bool `json:"passiveMode,omitempty"`

	// MinimumTTL is the lowest TTL that packets may arrive with in sessions across routers: with ebgpMultiHop, with a
	// ttlSecurity of more than one hop, which may allow a lower TTL, or with a router of the own AS that is on no link of
	// the node. Default 254, which allows one router in between. In other sessions packets must arrive with 255, and this
	// field has no effect.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	MinimumTTL *int32 `json:"minimumTtl,omitempty"`
}

// +kubebuilder:object:root=true

// BFDProfileList is what the API server lists.
type BFDProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BFDProfile `json:"items"`
}
