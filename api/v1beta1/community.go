package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Community names BGP communities. BGPAdvertisements may use these names in place of the numbers.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=communities,shortName=bgpcomm,categories=holdfast
// +kubebuilder:printcolumn:name="Names",type=string,JSONPath=`.spec.communities[*].name`
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Community struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   CommunitySpec `json:"spec,omitempty"`
	Status Status        `json:"status,omitempty"`
}

// CommunitySpec is a list of names.
type CommunitySpec struct {
	// Communities by name. If several objects define a name, the oldest object wins.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	Communities []CommunityAlias `json:"communities,omitempty"`
}

// CommunityAlias is the name of a community.
type CommunityAlias struct {
	// Name for BGPAdvertisements. It must not be the name of a well-known community, such as no-export.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_.-]*$`
	Name string `json:"name"`

	// Value of the community: "65000:100" (RFC 1997) or "large:64500:1:2" (RFC 8092).
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}:[0-9]{1,5}|large:[0-9]{1,10}:[0-9]{1,10}:[0-9]{1,10})$`
	// +kubebuilder:validation:XValidation:rule="!self.contains(':') || self.replace('large:', '').split(':').all(n, int(n) <= (self.startsWith('large:') ? 4294967295 : 65535))",message="the numbers of a community go to 65535 (65000:100), the numbers of a large community to 4294967295 (large:4200000000:1:2)"
	Value string `json:"value"`
}

// +kubebuilder:object:root=true

// CommunityList is what the API server lists.
type CommunityList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Community `json:"items"`
}
