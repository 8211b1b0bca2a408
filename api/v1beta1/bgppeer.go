package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionEstablished on a BGPPeer is True if every node that should have a session with the router has one. Otherwise
// its message names the nodes without a session, and why. It is Unknown while nodes make their first attempt to
// connect. The controller writes it.
const ConditionEstablished = "Established"

// BGPPeer is a router that speakers connect to and advertise routes to. A session over IPv4 carries IPv4 routes, and a
// session over IPv6 carries IPv6 routes. With dualStackAddressFamily or interface, a session carries both.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=bgpp,categories=holdfast
// +kubebuilder:printcolumn:name="Peer",type=string,JSONPath=`.spec.peerAddress`
// +kubebuilder:printcolumn:name="Interface",type=string,JSONPath=`.spec.interface`
// +kubebuilder:printcolumn:name="Peer AS",type=integer,JSONPath=`.spec.peerASN`
// +kubebuilder:printcolumn:name="My AS",type=integer,JSONPath=`.spec.myASN`
// +kubebuilder:printcolumn:name="Sessions",type=string,JSONPath=`.status.sessions`
// +kubebuilder:printcolumn:name="BFD profile",type=string,JSONPath=`.spec.bfdProfile`,priority=1
// +kubebuilder:printcolumn:name="Node selectors",type=string,JSONPath=`.spec.nodeSelectors`,priority=1
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BGPPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BGPPeerSpec   `json:"spec"`
	Status BGPPeerStatus `json:"status,omitempty"`
}

// BGPPeerStatus summarizes the SpeakerStates. The controller changes it at most every 5 seconds.
type BGPPeerStatus struct {
	Status `json:",inline"`

	// Sessions is the number of established sessions and the number of expected sessions, as "3/4". A session is expected
	// on every node that nodeSelectors select and that has a SpeakerState.
	// +kubebuilder:validation:MaxLength=32
	Sessions string `json:"sessions,omitempty"`
}

// BGPPeerSpec configures the session that every selected node has with the router.
//
// +kubebuilder:validation:XValidation:rule="has(self.peerAddress) != has(self.interface)",message="write either peerAddress, or interface for an unnumbered peer"
// +kubebuilder:validation:XValidation:rule="!has(self.interface) || !has(self.sourceAddress)",message="interface and sourceAddress exclude each other: an unnumbered session is between link-local addresses"
// +kubebuilder:validation:XValidation:rule="!has(self.interface) || !has(self.ebgpMultiHop) || !self.ebgpMultiHop",message="interface and ebgpMultiHop exclude each other: an unnumbered peer is on the node's link"
// +kubebuilder:validation:XValidation:rule="has(self.peerASN) != has(self.dynamicASN)",message="write either peerASN, or dynamicASN: internal or external"
// +kubebuilder:validation:XValidation:rule="!has(self.ebgpMultiHop) || !self.ebgpMultiHop || (has(self.dynamicASN) ? self.dynamicASN == 'external' : !has(self.peerASN) || self.myASN != self.peerASN)",message="ebgpMultiHop is for peers of another AS: remove it, or correct myASN or peerASN"
// +kubebuilder:validation:XValidation:rule="!has(self.localASN) || (has(self.dynamicASN) ? self.dynamicASN == 'external' : !has(self.peerASN) || self.peerASN != self.myASN && self.peerASN != self.localASN)",message="localASN is for peers of another AS, and must not be the peer's own: write myASN alone, or correct peerASN"
// +kubebuilder:validation:XValidation:rule="!has(self.ttlSecurity) || !has(self.ebgpMultiHop) || !self.ebgpMultiHop",message="ttlSecurity and ebgpMultiHop exclude each other: ttlSecurity is itself the number of hops"
// +kubebuilder:validation:XValidation:rule="!has(self.password) || !has(self.passwordSecret) || !has(self.passwordSecret.name)",message="write either password or passwordSecret"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !has(self.peerAddress) || !isIP(self.sourceAddress) || !isIP(self.peerAddress) || ip(self.sourceAddress).family() == ip(self.peerAddress).family()",message="sourceAddress and peerAddress must be of one IP family"
// +kubebuilder:validation:XValidation:rule="!has(self.holdTime) || !has(self.keepaliveTime) || duration(self.keepaliveTime) <= duration(self.holdTime)",message="keepaliveTime must not be longer than holdTime"
type BGPPeerSpec struct {
	// MyASN is the AS number of the speakers.
	MyASN ASN `json:"myASN"`

	// PeerASN is the AS number that the router must have. Either this or dynamicASN is required.
	PeerASN ASN `json:"peerASN,omitempty"`

	// DynamicASN replaces peerASN: internal accepts only our own AS number, external accepts any other.
	// +kubebuilder:validation:Enum=internal;external
	DynamicASN string `json:"dynamicASN,omitempty"`

	// LocalASN replaces myASN towards this router, in the OPEN and in AS_PATH. The router must be of another AS.
	LocalASN ASN `json:"localASN,omitempty"`

	// PeerAddress is the address to connect to. Either this or interface is required.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="peerAddress must be an IPv4 or IPv6 address"
	PeerAddress string `json:"peerAddress,omitempty"`

	// Interface replaces peerAddress for an unnumbered peer. It is the name of the nodes' link to the router. Nodes find
	// the router by its Router Advertisements (RFC 4861). The session is between link-local addresses and carries routes
	// of both families (RFC 8950). The nodes send Router Advertisements on the link too, with router lifetime 0.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.-]+$`
	Interface string `json:"interface,omitempty"`

	// PeerPort is the TCP port to connect to.
	// +kubebuilder:default=179
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	PeerPort int32 `json:"peerPort,omitempty"`

	// SourceAddress is the local address to connect from. It must be an address of the node.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="sourceAddress must be an IPv4 or IPv6 address"
	SourceAddress string `json:"sourceAddress,omitempty"`

	// HoldTime proposed to the router (RFC 4271 section 4.2): whole seconds, at least 3s. Default 90s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3s') && duration(self) <= duration('65535s')",message="holdTime must be between 3s and 65535s"
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`

	// KeepaliveTime is the time between KEEPALIVE messages. By default, and for 0s, it is a third of the hold time.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration('0s') || duration(self) >= duration('1s')",message="keepaliveTime must be at least 1s"
	KeepaliveTime *metav1.Duration `json:"keepaliveTime,omitempty"`

	// ConnectTime is the time between attempts to connect (ConnectRetryTimer of RFC 4271). Default 2s; 1s is treated as
	// 2s. The first eight attempts for a session are 250ms apart.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('65535s')",message="connectTime must be between 1s and 65535s"
	ConnectTime *metav1.Duration `json:"connectTime,omitempty"`

	// RouterID is the BGP identifier, in the form of an IPv4 address. It must be the same for all peers of one node. By
	// default a node uses its first IPv4 address, or a number derived from its name.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).family() == 4",message="routerID must have the form of an IPv4 address"
	RouterID string `json:"routerID,omitempty"`

	// NodeSelectors by the node's labels; a node that matches one of them has the session. None means all nodes.
	NodeSelectors LabelSelectors `json:"nodeSelectors,omitempty"`

	// EBGPMultiHop allows a router of another AS that is more than one hop away.
	EBGPMultiHop bool `json:"ebgpMultiHop,omitempty"`

	// TTLSecurity protects the session from packets of machines that are farther away than the router (RFC 5082). It is
	// the greatest number of hops to the router, 1 if the router is on the node's link. The router needs the same setting.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	TTLSecurity int32 `json:"ttlSecurity,omitempty"`

	// Password signs every segment of the connection (TCP MD5, RFC 2385). Every user who may read BGPPeers can read it:
	// prefer passwordSecret. It is printable ASCII without spaces at its ends, where routers drop them.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	// +kubebuilder:validation:Pattern=`^[!-~]([ -~]*[!-~])?$`
	Password string `json:"password,omitempty"`

	// PasswordSecret names a Secret of type kubernetes.io/basic-auth in Holdfast's own namespace, whose entry
	// "password" is the password. If it changes, only this session is restarted. The empty object names no Secret.
	PasswordSecret *SecretReference `json:"passwordSecret,omitempty"`

	// DualStackAddressFamily makes the session carry routes of both families instead of its own only.
	DualStackAddressFamily bool `json:"dualStackAddressFamily,omitempty"`

	// DisableMP has no effect, neither here nor in MetalLB.
	DisableMP bool `json:"disableMP,omitempty"`

	// VRF must be empty: sessions within a VRF are not supported.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == ''",message="sessions within a VRF are not served: remove vrf, and use a router that the node reaches by its main routing table"
	VRF string `json:"vrf,omitempty"`

	// BFDProfile is the name of a BFDProfile. With one, the session opens when BFD is up, and ends at once when BFD fails
	// (RFC 5882).
	// +kubebuilder:validation:MaxLength=253
	BFDProfile string `json:"bfdProfile,omitempty"`

	// EnableGracefulRestart asks the router to keep the routes while a speaker restarts (RFC 4724).
	// +kubebuilder:default=true
	EnableGracefulRestart *bool `json:"enableGracefulRestart,omitempty"`
}

// ASN is the number of an autonomous system in plain decimal notation (asplain, RFC 5396): 65000.1 in asdot notation is
// 65000*65536+1 = 4259840001.
//
// +kubebuilder:validation:Minimum=1
// +kubebuilder:validation:Maximum=4294967295
type ASN = int64

// SecretReference names a Secret in Holdfast's own namespace.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) || !has(self.__namespace__)",message="passwordSecret needs the name of the Secret, too"
type SecretReference struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// Namespace of the Secret. Only Holdfast's own namespace is allowed.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// +kubebuilder:object:root=true

// BGPPeerList is what the API server lists.
type BGPPeerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BGPPeer `json:"items"`
}
