package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is holdfast.dev/v1beta1.
var GroupVersion = schema.GroupVersion{Group: "holdfast.dev", Version: "v1beta1"}

// AddToScheme registers every kind of the group with s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&IPAddressPool{}, &IPAddressPoolList{},
		&PoolMemory{}, &PoolMemoryList{},
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
