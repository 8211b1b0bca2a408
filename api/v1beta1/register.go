package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version, holdfast.dev/v1beta1.
var GroupVersion = schema.GroupVersion{Group: "holdfast.dev", Version: "v1beta1"}

// AddToScheme registers all kinds of the group with s. It always returns nil.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&IPAddressPool{}, &IPAddressPoolList{},
		&PoolMemory{}, &PoolMemoryList{},
		&EgressAllocation{}, &EgressAllocationList{},
		&FloatingIP{}, &FloatingIPList{},
		&L2Advertisement{}, &L2AdvertisementList{},
		&BGPAdvertisement{}, &BGPAdvertisementList{},
		&BGPPeer{}, &BGPPeerList{},
		&BFDProfile{}, &BFDProfileList{},
		&Community{}, &CommunityList{},
		&SpeakerState{}, &SpeakerStateList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
