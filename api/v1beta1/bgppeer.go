package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionEstablished is written by the controller on a BGPPeer: True if every node that should have a session with it
// has one; otherwise which nodes have none, and why. It is Unknown while nodes only begin to connect.
const ConditionEstablished = "Established"

// BGPPeer is a router to which speakers connect and advertise routes. A session carries the routes of its own
// family: IPv4 routes go over IPv4, IPv6 over IPv6; with dualStackAddressFamily, or interface, it carries both.
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

// BGPPeerStatus is what the controller reads from the SpeakerStates. It changes at most every 5 seconds.
type BGPPeerStatus struct {
	Status `json:",inline"`

	// Sessions is how many of its sessions are established, of how many there should be: 3/4. There should be one on every
	// node that nodeSelectors select and that has a SpeakerState.
	// +kubebuilder:validation:MaxLength=32
	Sessions string `json:"sessions,omitempty"`
}

// BGPPeerSpec is a session that every selected node has.
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
	// MyASN is the AS number the speakers use.
	MyASN ASN `json:"myASN"`

	// PeerASN is the AS number the router must have. Either this or dynamicASN is required.
	PeerASN ASN `json:"peerASN,omitempty"`

	// DynamicASN in place of peerASN: internal is our own AS number, external any other.
	// +kubebuilder:validation:Enum=internal;external
	DynamicASN string `json:"dynamicASN,omitempty"`

	// LocalASN replaces myASN towards this router, in the OPEN and in AS_PATH. The router must be of another AS.
	LocalASN ASN `json:"localASN,omitempty"`

	// PeerAddress to dial. Either this or interface is required.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="peerAddress must be an IPv4 or IPv6 address"
	PeerAddress string `json:"peerAddress,omitempty"`

	// Interface in place of peerAddress, for an unnumbered peer: the name of the nodes' link to the router. The router is
	// found by its Router Advertisements (RFC 4861), and the session is between link-local addresses. It carries routes of
	// both families (RFC 8950). The nodes send Router Advertisements there too, with router lifetime 0.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.-]+$`
	Interface string `json:"interface,omitempty"`

	// PeerPort to dial.
	// +kubebuilder:default=179
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	PeerPort int32 `json:"peerPort,omitempty"`

	// SourceAddress is the local address to dial from. It must be an address of the node.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="sourceAddress must be an IPv4 or IPv6 address"
	SourceAddress string `json:"sourceAddress,omitempty"`

	// HoldTime proposed to the router (RFC 4271 section 4.2): whole seconds, at least 3s. Default 90s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3s') && duration(self) <= duration('65535s')",message="holdTime must be between 3s and 65535s"
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`

	// KeepaliveTime between KEEPALIVE messages. Default, and for 0s, a third of the hold time.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration('0s') || duration(self) >= duration('1s')",message="keepaliveTime must be at least 1s"
	KeepaliveTime *metav1.Duration `json:"keepaliveTime,omitempty"`

	// ConnectTime between attempts to connect (RFC 4271 ConnectRetryTimer). Default 2s; 1s is taken as 2s. The first eight attempts for a
	// session come every 250ms.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('65535s')",message="connectTime must be between 1s and 65535s"
	ConnectTime *metav1.Duration `json:"connectTime,omitempty"`

	// RouterID is the BGP identifier, in IPv4 form; all peers of one node must agree. By default a
	// node uses its first IPv4 address, or a number derived from its name.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).family() == 4",message="routerID must have the form of an IPv4 address"
	RouterID string `json:"routerID,omitempty"`

	// NodeSelectors by the node's labels; a node that matches one of them has the session. None means all nodes.
	NodeSelectors LabelSelectors `json:"nodeSelectors,omitempty"`

	// EBGPMultiHop allows a router more than one hop away.
	EBGPMultiHop bool `json:"ebgpMultiHop,omitempty"`

	// TTLSecurity protects the session from packets of machines that are farther away than the router (RFC 5082): it is
	// how many hops the router may be away, 1 if it is on the node's link. The router needs the same setting.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	TTLSecurity int32 `json:"ttlSecurity,omitempty"`

	// Password signs every segment of the connection (TCP MD5, RFC 2385). Everybody who may read BGPPeers can read it:
	// prefer passwordSecret. Printable ASCII; spaces not at the ends, where routers drop them.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	// +kubebuilder:validation:Pattern=`^[!-~]([ -~]*[!-~])?$`
	Password string `json:"password,omitempty"`

	// PasswordSecret names a Secret of type kubernetes.io/basic-auth in Holdfast's own namespace, whose entry
	// "password" is the password. If it changes, this session alone is opened again. The empty object names none.
	PasswordSecret *SecretReference `json:"passwordSecret,omitempty"`

	// DualStackAddressFamily makes the session carry both IPv4 and IPv6 routes, and not only routes of its own family.
	DualStackAddressFamily bool `json:"dualStackAddressFamily,omitempty"`

	// DisableMP is read by MetalLB, and has no effect there or here.
	DisableMP bool `json:"disableMP,omitempty"`

	// VRF is refused: sessions within a VRF are not served.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == ''",message="sessions within a VRF are not served: remove vrf, and use a router that the node reaches by its main routing table"
	VRF string `json:"vrf,omitempty"`

	// BFDProfile by name: with one, the session opens when BFD is up, and ends at once when BFD fails (RFC 5882).
	// +kubebuilder:validation:MaxLength=253
	BFDProfile string `json:"bfdProfile,omitempty"`

	// EnableGracefulRestart asks the router to keep the routes while a speaker restarts (RFC 4724).
	// +kubebuilder:default=true
	EnableGracefulRestart *bool `json:"enableGracefulRestart,omitempty"`
}

// ASN is the number of an autonomous system, as one number: 65000.1 in RFC 5396's asdot is 65000*65536+1 = 4259840001.
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

	// Namespace of the Secret; only Holdfast's own is read.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// +kubebuilder:object:root=true

type BGPPeerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BGPPeer `json:"items"`
}
